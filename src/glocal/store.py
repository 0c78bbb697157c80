"""Save an enhanced model to one safetensors file, with its host and mechanisms as JSON, and read it back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from glocal._version import __version__
from glocal.enhance import Record, enhance
from glocal.errors import GlocalError
from glocal.mechanisms import build
from glocal.zoo import create_model

_KEY = "glocal"


def save(model: nn.Module, path: str | Path, facts: Mapping[str, Any] | None = None) -> None:
    """Write weights and recipe of a model to one file; nothing is left behind if it fails half way.

    A host that was not made by `glocal.create_model` is saved with its class name only, and `load` asks for it.
    `facts` are what else a reader should know: the names of the classes, how images were normalised.
    """
    model = _unwrapped(model)
    if getattr(getattr(model, "glocal", None), "folded", False):
        raise GlocalError(
            "this is a folded copy, which load() could not rebuild. Save the model it was made from, and fold() again "
            "after load(); export() keeps a folded copy as it is."
        )
    write(model.state_dict(), recipe_of(model) | ({"facts": dict(facts)} if facts else {}), Path(path))


def write(state: Mapping[str, Tensor], recipe: Mapping[str, Any], path: Path) -> None:
    """Write a model's tensors with its recipe, whole or not at all."""
    if path.is_dir():
        raise GlocalError(f"{path} is a folder; a model goes into one file, such as {path / 'model.safetensors'}.")
    refuse_device(path)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
        usual = part.stat().st_mode  # safetensors would let no one but the owner read
        save_file(_apart(state), part, metadata={"format": "pt", _KEY: json.dumps(recipe)})
        part.chmod(usual)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except (OSError, SafetensorError) as error:  # the latter is what safetensors makes of the former
        reason = getattr(error, "strerror", None) or error
        raise GlocalError(f"cannot write {path}: {reason}. Make room, or name another file.") from error
    finally:
        with suppress(OSError):  # the folder itself may be what is wrong
            part.unlink(missing_ok=True)


def refuse_device(path: Path) -> None:
    """Raise where a file put in its place would do away with a device or a pipe, such as /dev/null."""
    if path.exists() and not path.is_file():
        raise GlocalError(f"{path} is a device or a pipe, and a file would take its place. Name a file to write.")


def load(path: str | Path, host: nn.Module | None = None) -> nn.Module:
    """Rebuild a saved model: its host (or the one given), its mechanisms, its weights."""
    path = Path(path)
    recipe = read_recipe(path)
    if host is None and recipe["name"] is None:
        raise GlocalError(
            f"{path} holds a {recipe['host']} that was not made by glocal.create_model, so its arguments are unknown. "
            f"Make the plain host yourself and pass it: load(path, host=...)."
        )
    model = create_model(recipe["name"], **recipe["arguments"]) if host is None else host
    if type(model).__name__ != recipe["host"]:
        raise GlocalError(f"{path} holds a {recipe['host']}, but the host given is a {type(model).__name__}.")
    _restore_shape(model, recipe["shape"])
    for step in recipe["steps"]:
        mechanisms = [
            build(each["name"], {k: v for k, v in each.items() if k != "name"}) for each in step["mechanisms"]
        ]
        model = enhance(model, *mechanisms, inplace=host is None, preserve=step["preserve"])
    fill(model, load_file(path), path)
    return model.eval()


def read_recipe(path: Path) -> dict[str, Any]:
    """Read what a file says of the model in it."""
    if not path.is_file():
        raise GlocalError(f"{path} is not a file. load() wants one that glocal.save() wrote.")
    if path.suffix == ".pt" and path.parent.name == "checkpoints":
        raise GlocalError(
            f"{path} is a training checkpoint. `glocal convert {path} -o {path.parent.parent / path.stem}.safetensors` "
            f"makes a model of it."
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise GlocalError(
            f"{path} is not a whole safetensors file ({error}). Was it cut short, or saved otherwise?"
        ) from None
    if _KEY not in metadata:
        raise GlocalError(
            f"{path} holds weights only, no record of host and mechanisms. Was it written by glocal.save()?"
        )
    return json.loads(metadata[_KEY])


def _unwrapped(model: nn.Module) -> nn.Module:
    """Find the model itself in a compiled one, in DataParallel and its kin, and in a moving average."""
    for name in ("_orig_mod", "module"):
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module):
            return _unwrapped(inner)
    return model


def recipe_of(model: nn.Module) -> dict[str, Any]:
    """Tell how a model is made again: its host, and what was grafted."""
    record = getattr(model, "glocal", None)
    record = record if isinstance(record, Record) else Record(type(model).__name__)
    known = record.name is not None and _is_json(record.arguments)
    return {
        "version": __version__,
        "host": type(model).__name__,
        "name": record.name if known else None,
        "arguments": record.arguments if known else {},
        "steps": [{"mechanisms": list(step.mechanisms), "preserve": step.preserve} for step in record.steps],
        "shape": _shape(model),
    }


def _shape(model: nn.Module) -> dict[str, Any]:
    """What a user may have changed after building: head, pooling, image and window size."""
    shape = {key: getattr(model, key, None) for key in ("num_classes", "global_pool")}
    shape["img_size"] = getattr(getattr(model, "patch_embed", None), "img_size", None)
    shape["window_size"] = next((m.window_size for m in model.modules() if hasattr(m, "target_shift_size")), None)
    return {key: value for key, value in shape.items() if value is not None and _is_json(value)}


def _restore_shape(model: nn.Module, shape: Mapping[str, Any]) -> None:
    now = _shape(model)
    reset: Any = getattr(model, "reset_classifier", None)
    if any(now.get(key) != shape.get(key) for key in ("num_classes", "global_pool")) and reset is not None:
        reset(shape["num_classes"], shape.get("global_pool"))
    resize: Any = getattr(model, "set_input_size", None)
    sizes = {key: tuple(shape[key]) for key in ("img_size", "window_size") if key in shape}
    if any(tuple(now.get(key, ())) != size for key, size in sizes.items()) and resize is not None:
        resize(**sizes)


def _apart(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    seen: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for name, each in state.items():
        shared = each.data_ptr() in seen  # safetensors refuses tensors that share memory
        seen.add(each.data_ptr())
        tensors[name] = each.clone() if shared else each.contiguous()
    return tensors


def fill(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Put the tensors of a file into a model, all of them or none."""
    own = model.state_dict()
    faults = [f"missing {name}" for name in own if name not in tensors]
    faults += [f"left over {name}" for name in tensors if name not in own]
    faults += [
        f"{name} is {tuple(tensors[name].shape)}, wanted {tuple(own[name].shape)}"
        for name in own
        if name in tensors and own[name].shape != tensors[name].shape
    ]
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise GlocalError(f"the weights in {path} do not fit the model: {'; '.join(faults[:5])}{more}.")
    model.load_state_dict(tensors)


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True
