"""Read the tensors of a checkpoint file, and nothing but tensors."""

from __future__ import annotations

import argparse
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from glocal.errors import GlocalError

# Where training scripts put the weights; the plain weights before their moving average, as the papers report them.
_PLACES = ("model", "state_dict", "model_state", "model_ema", "state_dict_ema")


def read_tensors(source: str | Path | Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the state dict in a file, or in a mapping; wrappings of training scripts are taken off."""
    content = source if isinstance(source, Mapping) else read_file(Path(source))
    where = "the state dict given" if isinstance(source, Mapping) else str(source)
    if not isinstance(content, Mapping):
        raise GlocalError(f"{where} holds a {type(content).__name__}, not a state dict of names and tensors.")
    for place in _PLACES:
        if isinstance(inside := content.get(place), Mapping):
            content = inside
            break
    others = [name for name, value in content.items() if not isinstance(value, Tensor)]
    if others or not content:
        found = f"{others[0]!r} is a {type(content[others[0]]).__name__}" if others else "it is empty"
        raise GlocalError(f"{where} is not a state dict of names and tensors: {found}.")
    # Wrappers of parallel training put their own name before every other.
    wrapped = all(name.startswith("module.") for name in content)
    return {name.removeprefix("module.") if wrapped else name: value for name, value in content.items()}


def read_file(path: Path) -> Any:
    """Read what a file of tensors holds, as data: no code in it runs."""
    if not path.is_file():
        raise GlocalError(f"{path} is not a file. Give a checkpoint file, or the state dict itself.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        # Scripts built on DeiT's save their arguments beside the weights; a Namespace holds values, no code.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise GlocalError(_refusal(path, str(error))) from None
    except (RuntimeError, EOFError, ValueError, KeyError, IndexError, SafetensorError, OSError) as error:
        reason = (str(error).splitlines() or ["it ends too early"])[0][:200]
        raise GlocalError(f"{path} is not a whole checkpoint file ({reason}). Was the download cut short?") from None


def _refusal(path: Path, reason: str) -> str:
    found = re.search(r"GLOBAL ([\w.]+)", reason)
    if found:
        return (
            f"{path} holds more than tensors ({found[1]}), and glocal runs no code from a checkpoint. "
            f"Where you trust it, save its state dict alone with torch.save(model.state_dict(), ...)."
        )
    return f"{path} is not a whole checkpoint file. Was the download cut short, or is it another kind of file?"
