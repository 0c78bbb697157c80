"""glocal: local structure and cheap global context for any vision transformer."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from glocal._version import __version__

if TYPE_CHECKING:
    from glocal.enhance import Graft, Record, enhance, fold
    from glocal.errors import GlocalError, LatticeError
    from glocal.export import export
    from glocal.heads.build import put_on
    from glocal.lattice import Lattice
    from glocal.measure.cost import Cost, cost
    from glocal.mechanisms import (
        DTM,
        LIFE,
        ContextBroadcast,
        ConvStem,
        EarlyMLP,
        LocalFFN,
        SqueezeContext,
        UniformHead,
        named,
        spelled,
    )
    from glocal.optimize import compile_training, optimize
    from glocal.released import load_released
    from glocal.store import load, save
    from glocal.zoo import create_model

# Importing glocal loads neither torch nor timm; touching a name does.
_HOME = {
    **dict.fromkeys(("GlocalError", "LatticeError"), "errors"),
    "Lattice": "lattice",
    **dict.fromkeys(("Graft", "Record", "enhance", "fold"), "enhance"),
    **dict.fromkeys(("compile_training", "optimize"), "optimize"),
    "export": "export",
    "create_model": "zoo",
    "load_released": "released",
    "put_on": "heads.build",
    **dict.fromkeys(("load", "save"), "store"),
    **dict.fromkeys(("Cost", "cost"), "measure.cost"),
    **dict.fromkeys(
        (
            "DTM",
            "LIFE",
            "ContextBroadcast",
            "ConvStem",
            "EarlyMLP",
            "LocalFFN",
            "SqueezeContext",
            "UniformHead",
            "named",
            "spelled",
        ),
        "mechanisms",
    ),
}

__all__ = ["__version__", *_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'glocal' has no attribute {name!r}")
    value = getattr(import_module(f"glocal.{_HOME[name]}"), name)
    if _HOME[name] not in ("errors", "lattice"):
        import_module("glocal.zoo")  # timm knows glocal's models from here on
    globals()[name] = value
    return value


class _Package(ModuleType):
    """Python binds a submodule to its package; where a function has the submodule's name, the function wins."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOME and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted(__all__)
