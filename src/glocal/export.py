"""Models out of the door: ONNX and torch.export files, compared with the original before they are kept."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from glocal.enhance import enhance, fold
from glocal.errors import GlocalError
from glocal.mechanisms import named
from glocal.mechanisms.token_merge import DeformableConv
from glocal.store import load, refuse_device
from glocal.zoo import create_model

Kind = Literal["onnx", "torch-export"]
Shape = tuple[int, int, int, int]
_FIRST_DEFORM = 19  # ONNX has DeformConv from here on; asked for less, the exporter writes a graph that no one can read
_ENDINGS: dict[str, Kind] = {".onnx": "onnx", ".pt2": "torch-export"}
_NEEDS = "pip install 'glocal[export]'"


@dataclass(frozen=True)
class Exported:
    """A kept file, the input shapes it was tried with, its open dimensions, and how far it is from the original."""

    path: Path
    shapes: tuple[Shape, ...]
    free: tuple[int, ...]
    difference: float


def export(
    model: nn.Module,
    path: str | Path,
    *,
    to: Kind | None = None,
    size: int | tuple[int, int] | None = None,
    batch: int = 1,
    dynamic: bool = False,
    opset: int = 20,
    tolerance: float = 1e-4,
) -> Exported:
    """Write a folded copy of a model to a file, run the file on fresh images, and keep it only if they agree.

    Without `to`, the file's ending chooses: .onnx, or .pt2 for torch.export. `dynamic` leaves the batch open, and
    the image size too where the host takes any. The file is tried at two batch or image sizes then, else twice at the
    one shape it takes.
    """
    path, plain = Path(path), fold(model).cpu().float()
    to = to or _kind(path)
    _check(plain, to, opset)
    folder = _room(path)
    part = path.with_name(f"{path.stem}.{os.getpid()}.part.{'onnx' if to == 'onnx' else 'pt2'}")
    try:
        *wishes, last = _wishes(plain, _pixels(model, size), dynamic, batch)
        for shapes, free in wishes:
            with contextlib.suppress(GlocalError):  # a host may take any size and yet not export so
                return _attempt(plain, path, part, shapes, free, (to, opset, tolerance))
        return _attempt(plain, path, part, *last, (to, opset, tolerance))
    except OSError as error:
        raise GlocalError(f"cannot write {path}: {error.strerror or error}.") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
            if not path.exists():
                for made in folder:
                    made.rmdir()


def open_model(
    place: str, variant: str | None = None, pixels: tuple[int, int] | None = None, classes: int | None = None
) -> nn.Module:
    """Find a model by run folder, saved file or name, and graft a variant onto it where one is given."""
    file = Path(place)
    file = file / "model.safetensors" if file.is_dir() else file
    mechanisms = named(variant) if variant else ()
    if file.is_file():
        model = load(file)
        return enhance(model, *mechanisms, inplace=True).eval() if mechanisms else model
    if "/" in place or file.suffix in (".safetensors", ".pth", ".pt", ".pt2", ".bin", ".onnx", ".yaml"):
        raise GlocalError(f"{place} is neither a run folder nor a file. Give one of these, or a model's name.")
    arguments: dict[str, Any] = {} if classes is None else {"num_classes": classes}
    sized: dict[str, Any] = {} if pixels is None else {"img_size": pixels}
    with contextlib.suppress(TypeError):  # a host that takes any size has no such argument
        return create_model(place, *mechanisms, **arguments, **sized).eval()
    return create_model(place, *mechanisms, **arguments).eval()


def _attempt(
    model: nn.Module, path: Path, part: Path, shapes: list[Shape], free: dict[int, Any], how: tuple[str, int, float]
) -> Exported:
    to, opset, tolerance = how
    program = _trace(model, shapes[0], free)
    run = _write_onnx(program, part, opset) if to == "onnx" else _write_program(program, part)
    differences = [each for shape in shapes for each in _differences(model, run, shape)]
    if not all(each <= tolerance for each in differences):  # nan is not <= either
        worst = max((each for each in differences if not each <= tolerance), key=lambda each: (each != each, each))
        raise GlocalError(
            f"{to} gives other numbers than PyTorch: the largest difference is {worst:.2g} of the largest output, "
            f"more than {tolerance:g}. Nothing was kept."
        )
    part.replace(path)
    return Exported(path, tuple(shapes), tuple(sorted(free)), max(differences))


def _kind(path: Path) -> Kind:
    _refuse_place(path)
    if path.suffix.lower() not in _ENDINGS:
        raise GlocalError(
            f"{path} does not tell the kind of file. End it in .onnx, or in .pt2 for torch.export, or say it with --to."
        )
    return _ENDINGS[path.suffix.lower()]


def _room(path: Path) -> list[Path]:
    """Make the folder a file goes to; give the folders that were not there, innermost first."""
    _refuse_place(path)
    missing = [each for each in path.parents if not each.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GlocalError(f"cannot make the folder {path.parent}: {error.strerror or error}.") from None
    return missing


def _refuse_place(path: Path) -> None:
    if path.is_dir():
        raise GlocalError(f"{path} is a folder. Name the file to write, such as {path / 'model.onnx'}.")
    refuse_device(path)


def _check(model: nn.Module, to: str, opset: int) -> None:
    if to not in ("onnx", "torch-export"):
        raise GlocalError(f"cannot export to {to!r}. There are: onnx, torch-export.")
    if to != "onnx":
        return
    deforms = any(isinstance(module, DeformableConv) for module in model.modules())
    if deforms and opset < _FIRST_DEFORM:
        raise GlocalError(
            f"ONNX has no deformable convolution in opset {opset}. Use opset 19 or 20 for models with DTM."
        )
    if opset < 18:
        raise GlocalError(f"opset {opset} is older than PyTorch writes. Use 18 or later; 20 is the default.")
    try:
        import onnx
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise GlocalError(f"export to ONNX needs {error.name}. Install it: {_NEEDS}") from None
    if opset > (newest := onnx.defs.onnx_opset_version()):
        raise GlocalError(f"opset {opset} is newer than the onnx here knows, {newest}. 20 is the default.")


def _pixels(model: nn.Module, size: int | tuple[int, int] | None) -> tuple[int, int]:
    """Find the image size: as asked, or the host's own."""
    if size is None:
        built: Any = next((m.img_size for m in model.modules() if getattr(m, "img_size", None) is not None), None)
        built = built or getattr(getattr(model, "config", None), "image_size", None)  # transformers' models
        if isinstance(built, int):
            return built, built
        size = tuple((built or (getattr(model, "default_cfg", None) or {}).get("input_size", (3, 224, 224)))[-2:])
    return (size, size) if isinstance(size, int) else size


def _wishes(
    model: nn.Module, pixels: tuple[int, int], dynamic: bool, batch: int
) -> list[tuple[list[Shape], dict[int, Any]]]:
    """List what to leave open, boldest first, each with the shapes to try; the first of them is traced."""
    channels = getattr(model, "in_chans", None) or next(
        (m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), 3
    )
    if not dynamic:
        return [([(batch, channels, *pixels)] * 2, {})]
    first: Shape = (2, channels, *pixels)  # an open batch is not traced at one
    wishes: list[tuple[list[Shape], dict[int, Any]]] = [([first, (3, *first[1:])], {0: Dim.DYNAMIC})]
    other: Shape = (3, channels, 2 * pixels[0], 3 * pixels[1])
    if _takes(model, other):
        # Traced at the size it was built for, a host would leave its positions at that size.
        wishes.insert(0, ([other, first], {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}))
    return wishes


@torch.no_grad()
def _takes(model: nn.Module, shape: Shape) -> bool:
    try:
        model(torch.zeros(shape))
    except (AssertionError, RuntimeError, ValueError, GlocalError):
        return False
    return True


def _trace(model: nn.Module, shape: Shape, free: dict[int, Any]) -> ExportedProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # Not strict: in strict mode the plain hosts do not export with open sizes either.
            return torch.export.export(
                model, (torch.randn(shape),), dynamic_shapes=(free,) if free else None, strict=False
            )
        except Exception as error:  # torch raises many kinds
            raise GlocalError(f"{type(model).__name__} cannot be traced at {shape}: {_reason(error)}") from error


def _write_onnx(program: ExportedProgram, path: Path, opset: int) -> Callable[[Tensor], Sequence[Tensor]]:
    import onnxruntime
    from torch.onnx import OnnxExporterError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            written = torch.onnx.export(program, dynamo=True, opset_version=opset, verbose=False)
        except OnnxExporterError as error:
            raise GlocalError(f"ONNX has no words for this model: {_reason(error)} Try torch-export.") from error
    assert written is not None
    written.save(path, external_data=False)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own kinds have no common base
        raise GlocalError(
            f"onnxruntime cannot read the file at opset {opset}: {str(error).strip()[-300:]} Nothing was kept. "
            f"Try an older opset; 20 is the default."
        ) from error
    name = session.get_inputs()[0].name
    return lambda images: [torch.as_tensor(each) for each in session.run(None, {name: images.numpy()})]


def _reason(error: BaseException) -> str:
    """Give the first line of the error that began it; those around it tell where in torch it was met."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().split("\n")[0]


def _write_program(program: ExportedProgram, path: Path) -> Callable[[Tensor], Sequence[Tensor]]:
    program.example_inputs = None  # else the images it was traced with go into the file
    torch.export.save(program, path)
    again = torch.export.load(path).module()
    return lambda images: _listed(again(images))


@torch.no_grad()
def _differences(model: nn.Module, run: Callable[[Tensor], Sequence[Tensor]], shape: Shape) -> list[float]:
    """Compare on fresh images: each output's largest difference, as a share of its largest number."""
    images = torch.randn(shape)
    try:
        got = run(images)
    except Exception as error:  # each runtime has its own kinds
        raise GlocalError(
            f"the exported file fails at {shape}: {str(error).strip()[-300:]} Nothing was kept."
        ) from error
    pairs = zip(got, _listed(model(images)), strict=True)
    return [float((a - b).abs().max() / b.abs().max().clamp_min(1e-6)) for a, b in pairs]


def _listed(output: Any) -> list[Tensor]:
    if isinstance(output, dict):
        output = output.values()
    return [output] if isinstance(output, Tensor) else list(output)
