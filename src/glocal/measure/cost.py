"""What a model costs before anyone trains it: parameters, multiply-adds, activations."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from glocal.errors import GlocalError
from glocal.measure.table import Column, Table
from glocal.mechanisms import named, spelled
from glocal.papers import find
from glocal.zoo import create_model


@dataclass(frozen=True)
class Cost:
    """The cost of one forward pass of one image."""

    params: int
    trainable: int
    macs: int
    activations: int
    size: tuple[int, int]

    @property
    def gmacs(self) -> float:
        """Billions of multiply-adds: half the floating-point operations."""
        return self.macs / 1e9


def cost(model: nn.Module, size: int | tuple[int, int] | None = None) -> Cost:
    """Count parameters, and multiply-adds and activations of one image of `size` (height, width).

    Counts convolutions, linear layers, matrix products and attention; deformable convolutions as plain ones.
    Activations are the elements these operations put out. Nothing is computed: shapes pass through a copy without
    storage.
    """
    height, width = _size(model, size)
    shadow = copy.deepcopy(model).to("meta", torch.float32).eval().requires_grad_(False)
    counter, outputs = FlopCounterMode(display=False, custom_mapping=_deformable()), _Outputs()
    try:
        image = torch.empty(1, _channels(model), height, width, device="meta")
        with torch.no_grad(), counter, outputs:
            shadow(image)
    except (AssertionError, RuntimeError, ValueError) as error:  # the last is how transformers' models refuse
        reason = str(error).splitlines()[0]
        raise GlocalError(f"{type(model).__name__} does not take {height}x{width} images: {reason}") from None
    return Cost(
        params=sum(each.numel() for each in model.parameters()),
        trainable=sum(each.numel() for each in model.parameters() if each.requires_grad),
        macs=counter.get_total_flops() // 2,
        activations=outputs.elements,
        size=(height, width),
    )


COLUMNS = (
    Column("model", "model"),
    Column("params", "params (M)", ".3f"),
    Column("params_added", "+M", "+.3f"),
    Column("gmacs", "GMACs", ".3f"),
    Column("gmacs_added_percent", "+%", "+.1f"),
    Column("activations", "activ. (M)", ".2f"),
    Column("paper", "paper: M / G"),
    Column("off", "off by"),
    Column("source", "source"),
    Column("paper_params"),
    Column("params_off"),
    Column("paper_gmacs"),
    Column("gmacs_off"),
)


def cost_table(
    host: str, variants: Sequence[str] = (), *, size: str | None = None, classes: int = 1000, preserve: bool = False
) -> Table:
    """Set a host beside its enhanced variants, and their papers' figures where there are any."""
    pixels = parse_size(size)
    grafts = [named(variant) for variant in variants]
    models = [("", _build(host, pixels, classes))]
    for mechanisms in grafts:
        model = _build(host, pixels, classes, *mechanisms, preserve=preserve)
        models.append((spelled(*mechanisms), model))
    plain: Cost | None = None
    rows: list[dict[str, Any]] = []
    for variant, model in models:
        here = cost(model, pixels)
        plain = plain or here
        row = _row(host, variant, here, plain)
        rows.append(row if preserve else row | _beside_paper(host, variant, here, model, classes))
    return Table(COLUMNS, rows, notes=_notes(rows))


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Read an image size: "224" or "HxW"."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text.strip().lower())
    if not match or int(match[1]) < 1 or int(match[2] or 1) < 1:
        raise GlocalError(f"size {text!r} is not understood. Write pixels as 224, or height by width as 192x256.")
    return int(match[1]), int(match[2] or match[1])


def _build(
    host: str, pixels: tuple[int, int] | None, classes: int, *mechanisms: Any, preserve: bool = False
) -> nn.Module:
    arguments: dict[str, Any] = {"num_classes": classes}
    try:
        if pixels is not None:
            return create_model(host, *mechanisms, preserve=preserve, img_size=pixels, **arguments)
    except TypeError:  # a host that takes any size has no such argument
        pass
    return create_model(host, *mechanisms, preserve=preserve, **arguments)


def _row(host: str, variant: str, here: Cost, plain: Cost) -> dict[str, Any]:
    row: dict[str, Any] = {
        "model": f"+ {variant}" if variant else host,
        "params": here.params / 1e6,
        "gmacs": here.gmacs,
        "activations": here.activations / 1e6,
    }
    if variant:
        row["params_added"] = (here.params - plain.params) / 1e6
        row["gmacs_added_percent"] = 100 * (here.macs - plain.macs) / plain.macs
    return row


# The same architecture under two names: the papers call it DeiT or ViT as they please.
_TWINS = {f"deit_{size}_patch16_224": f"vit_{size}_patch16_224" for size in ("tiny", "small", "base")}
_TWINS |= {vit: deit for deit, vit in _TWINS.items()}


def _beside_paper(host: str, variant: str, here: Cost, model: nn.Module, classes: int) -> dict[str, Any]:
    """What the papers print for the model, and how far off we are, counted with the paper's number of classes."""
    names = [name for name in (host, _TWINS.get(host)) if name]
    tries = [find(name, variant, size=here.size, num_classes=count) for count in (classes, None) for name in names]
    row = next((each for each in tries if each is not None), None)
    if row is None:
        return {}
    theirs = int(row.arguments.get("num_classes", 1000))
    head = (theirs - classes) * (int(getattr(model, "num_features", 0)) + 1)
    params, gmacs = (here.params + head) / 1e6, here.gmacs
    found: dict[str, Any] = {"source": row.source + (f" ({theirs} classes)" if theirs != classes else "")}
    if row.params_m is not None:
        found |= {"paper_params": row.params_m, "params_off": params - row.params_m}
    if row.gmacs is not None:
        found |= {"paper_gmacs": row.gmacs, "gmacs_off": gmacs - row.gmacs}
    found["paper"] = f"{_print(row.params_m, row.params_digits)} / {_print(row.gmacs, row.gmacs_digits)}"
    found["off"] = " / ".join(
        "–" if (off := found.get(k)) is None else f"{off:+.3f}" for k in ("params_off", "gmacs_off")
    )
    return found


def _print(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _notes(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    if not any("source" in row for row in rows):
        return ()
    return ("Papers print rounded figures; 'off by' is ours minus theirs.",)


class _Outputs(TorchDispatchMode):
    """Adds up the elements that counted operations put out."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        if packet in flop_registry or packet in _deformable():
            first = out[0] if isinstance(out, tuple) else out
            self.elements += first.numel() if isinstance(first, Tensor) else 0
        return out


def _deformable() -> dict[Any, Any]:
    try:
        import torchvision.ops  # noqa: F401  registers the operator

        return {torch.ops.torchvision.deform_conv2d: _deform_flops}
    except (ImportError, AttributeError):
        return {}


def _deform_flops(x: Any, weight: Any, *_: Any, out_shape: Any, **__: Any) -> int:
    return 2 * prod(out_shape) * prod(weight[1:])


def _size(model: nn.Module, size: int | tuple[int, int] | None) -> tuple[int, int]:
    if size is None:
        config: dict[str, Any] = getattr(model, "default_cfg", None) or {}
        built: Any = next((m.img_size for m in model.modules() if getattr(m, "img_size", None) is not None), None)
        built = built or getattr(getattr(model, "config", None), "image_size", None)  # transformers' models
        if isinstance(built, int):
            return built, built
        size = tuple(built or config.get("input_size", (3, 224, 224))[-2:])
    return (size, size) if isinstance(size, int) else size


def _channels(model: nn.Module) -> int:
    known = getattr(model, "in_chans", None)  # the first convolution may not see the image: T2T unfolds it
    return (
        known
        if isinstance(known, int)
        else next((m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), 3)
    )
