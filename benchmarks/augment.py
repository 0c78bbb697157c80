"""Time our batched augmentation beside torchvision v2 (one draw a batch, one draw an image) and kornia.

python benchmarks/augment.py -o docs/results/augment/cpu.json     times and keeps the figures
python benchmarks/augment.py --table docs/results/augment         writes docs/results/augment.md from all of them

kornia is no dependency: `pip install kornia` beside the project, or leave its column empty. All libraries get images
that already lie on the device, in the type they want (ours and v2 bytes, kornia floats), so none pays for a conversion
that a pipeline would do once. "v2, an image" seeds torch for each image, as drawing by (seed, epoch, image) asks for.
Rounds are interleaved; a figure is the median over rounds of milliseconds per batch.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torchvision
from timm.data.mixup import Mixup
from torch import Tensor
from torchvision.transforms import v2

from glocal.data.augment import _ERASE, Augmenter, _erase, _jitter, _resized, _shift
from glocal.data.chance import keys, uniform
from glocal.data.images import IMAGENET
from glocal.data.randaugment import RandAugment
from glocal.data.settings import PRESETS, Augment

SIZES = ((32, 512), (224, 128))  # pixels and images per batch
LIBRARIES = ("ours", "v2, a batch", "v2, an image", "kornia")
RAND = "rand-m9-mstd0.5-inc1"
BICUBIC = v2.InterpolationMode.BICUBIC
Work = Callable[[int], Any]  # takes the number of the batch, so that every call draws anew


def main() -> None:
    """Time every operation at every size, or write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slice", type=float, default=0.05, help="least seconds of one measurement")
    parser.add_argument("--quick", action="store_true", help="tiny batches, to see that it runs")
    parser.add_argument("--table", type=Path, help="folder of figures; writes the page beside it")
    options = parser.parse_args()
    if options.table:
        options.table.with_suffix(".md").write_text(page(options.table))
        return
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    figures = []
    for side, count in ((16, 8), (32, 4)) if options.quick else SIZES:
        for name, works in operations(side, count, device).items():
            found = _interleaved(works, device, options.rounds, options.slice)
            figures.append({"pixels": side, "batch": count, "operation": name, "ms": found})
            print(f"{side:>3} {name:<22} " + "  ".join(f"{k} {median(v):.2f}" for k, v in found.items()), flush=True)
    told = {"device": _device(device), "torch": torch.__version__, "torchvision": torchvision.__version__}
    told |= {"kornia": _kornia_version(), "rounds": options.rounds, "figures": figures}
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(told, indent=1) + "\n")


def operations(side: int, count: int, device: torch.device) -> dict[str, dict[str, Work]]:
    """Write each operation in each library's words, on one batch of random images."""
    generator = torch.Generator().manual_seed(0)
    bytes_ = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator).to(device)
    floats, labels = bytes_ / 255, torch.randint(0, 100, (count,), generator=generator).to(device)
    index = torch.arange(count)
    theirs, kornia = _v2(side), _kornia(side)

    def row(name: str, ours: Callable[[Tensor], Any], images: Tensor = bytes_) -> dict[str, Work]:
        change = theirs[name]
        made: dict[str, Work] = {
            "ours": lambda epoch: ours(keys(0, epoch, index)),
            "v2, a batch": lambda epoch: change(images),
            "v2, an image": lambda epoch: _one_by_one(change, images, keys(0, epoch, index)),
        }
        return made | ({"kornia": lambda epoch: kornia[name](floats)} if kornia else {})

    pad, resized = Augment("pad"), Augment("resized")
    flip, deit = Augmenter(Augment(flip=0.5), *IMAGENET), Augmenter(PRESETS["deit"], *IMAGENET)
    rand = RandAugment.parse(RAND, IMAGENET[0])
    rows = {
        "crop with padding": row("crop with padding", lambda key: _shift(bytes_, pad, uniform(key, 2, 0))),
        "resized crop": row("resized crop", lambda key: _resized(bytes_, resized, uniform(key, 4, 0))),
        "flip and normalise": row("flip and normalise", lambda key: flip(bytes_, key)),
        "RandAugment": row("RandAugment", lambda key: rand(bytes_, key, 40)),
        "colour jitter": row("colour jitter", lambda key: _jitter(bytes_, 0.4, uniform(key, 3, 0))),
        "random erasing": row("random erasing", lambda key: _erase(floats, 0.25, uniform(key, 5, _ERASE), key), floats),
        "all of DeiT's": row("all of DeiT's", lambda key: deit(bytes_, key)),
    }
    mixes = {"mixup": (Mixup(0.8, 0.0, num_classes=100), v2.MixUp(alpha=0.8, num_classes=100))}
    mixes["cutmix"] = (Mixup(0.0, 1.0, num_classes=100), v2.CutMix(alpha=1.0, num_classes=100))
    for name, (ours, other) in mixes.items():
        # timm's mixing works in place; the sum it makes of an image drifts, which costs no time.
        rows[name] = {
            "ours": lambda epoch, mix=ours: mix(floats, labels),
            "v2, a batch": lambda epoch, mix=other: mix(floats, labels),
        } | ({"kornia": lambda epoch, name=name: kornia[name](floats, labels)} if kornia else {})
    return rows


def _one_by_one(change: Any, images: Tensor, key: Tensor) -> Tensor:
    generators = [torch.default_generator, *([torch.cuda.default_generators[0]] if images.is_cuda else [])]
    made = []
    for image, seed in zip(images, key.tolist(), strict=True):
        for each in generators:
            each.manual_seed(seed & 0x7FFFFFFF)
        made.append(change(image))
    return torch.stack(made)


def _v2(side: int) -> dict[str, Any]:
    normalise = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(*IMAGENET)]
    resized = v2.RandomResizedCrop(side, interpolation=BICUBIC, antialias=True)
    flip, rand = v2.RandomHorizontalFlip(), v2.RandAugment(2, 9)
    erase = v2.RandomErasing(0.25, value="random")
    return {
        "crop with padding": v2.RandomCrop(side, padding=4),
        "resized crop": resized,
        "flip and normalise": v2.Compose([flip, *normalise]),
        "RandAugment": rand,
        "colour jitter": v2.ColorJitter(0.4, 0.4, 0.4),
        "random erasing": erase,
        "all of DeiT's": v2.Compose([resized, flip, rand, *normalise, erase]),
    }


def _kornia(side: int) -> dict[str, Any]:
    if not importlib.util.find_spec("kornia"):
        return {}
    import kornia.augmentation as K  # pyright: ignore[reportMissingImports]
    from kornia.augmentation.auto import RandAugment as Rand  # pyright: ignore[reportMissingImports]

    size = (side, side)
    resized = K.RandomResizedCrop(size, resample="BICUBIC", cropping_mode="resample")
    flip, rand, erase = K.RandomHorizontalFlip(), Rand(2, 9), K.RandomErasing(p=0.25)
    normalise = K.Normalize(*(torch.tensor(each) for each in IMAGENET))
    return {
        "crop with padding": K.RandomCrop(size, padding=4),
        "resized crop": resized,
        "flip and normalise": K.ImageSequential(flip, normalise),
        "RandAugment": rand,
        "colour jitter": K.ColorJitter(0.4, 0.4, 0.4, p=1.0),
        "random erasing": erase,
        "all of DeiT's": K.ImageSequential(resized, flip, rand, normalise, erase),
        "mixup": K.RandomMixUpV2(data_keys=["input", "class"]),
        "cutmix": K.RandomCutMixV2(data_keys=["input", "class"]),
    }


def _interleaved(works: dict[str, Work], device: torch.device, rounds: int, least: float) -> dict[str, list[float]]:
    """Give milliseconds per call: one measurement of each in turn, and round again."""
    calls = {}
    for name, work in works.items():
        _spent(work, device, 2, 0)  # warms up
        calls[name] = max(1, min(200, round(least / _spent(work, device, 2, 2) * 2)))
    found: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds):
        for name, work in works.items():
            spent = _spent(work, device, calls[name], 4 + turn * 200)
            found[name].append(round(1000 * spent / calls[name], 4))
    return found


def _spent(work: Work, device: torch.device, calls: int, first: int) -> float:
    # On a processor, its own time: other programs on the same cores do not count.
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = clock()
    for epoch in range(first, first + calls):
        work(epoch)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - began


def page(folder: Path) -> str:
    """Write all figures of a folder as one page."""
    parts = [_HEAD]
    for file in sorted(folder.glob("*.json")):
        told = json.loads(file.read_text())
        versions = f"torch {told['torch']}, torchvision {told['torchvision']}, kornia {told['kornia'] or 'absent'}"
        parts.append(f"\n## {told['device']}\n\n{versions}; median of {told['rounds']} rounds [least, most].\n")
        for side, count in dict.fromkeys((each["pixels"], each["batch"]) for each in told["figures"]):
            parts += [
                f"\n{side} pixels, batch {count}, milliseconds per batch:\n",
                f"| operation | {' | '.join(LIBRARIES)} |",
            ]
            parts.append("|---|" + "---:|" * len(LIBRARIES))
            chosen = [each for each in told["figures"] if each["pixels"] == side]
            parts += [
                f"| {each['operation']} | {' | '.join(_cell(each['ms'], k) for k in LIBRARIES)} |" for each in chosen
            ]
    return "\n".join(parts) + "\n"


def _cell(found: dict[str, list[float]], library: str) -> str:
    if library not in found:
        return "–"
    each = found[library]
    return f"{median(each):.2f} [{min(each):.2f}, {max(each):.2f}]"


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} processor, one thread, processor time"


def _kornia_version() -> str | None:
    if not importlib.util.find_spec("kornia"):
        return None
    import kornia  # pyright: ignore[reportMissingImports]

    return kornia.__version__


_HEAD = """# Our batched augmentation beside torchvision v2 and kornia

glocal draws by (seed, epoch, image), so that a run resumes with the same bits and gives the same images on any number
of processes. Of the others only "v2, an image" can: torch is seeded for each image, and each is changed alone. "v2, a
batch" draws once for all images of a batch, which augments less. kornia draws for each image, from the global
generator. The others' RandAugment changes every image twice, ours as timm's does: each of two operations with a chance
of one half. No GPU is in the table yet.

What follows from it: small images (up to 96 pixels), which lie on the device as bytes, are changed in batches by our
own code; larger ones are changed one by one by timm's and torchvision's transforms while they are loaded.

`python benchmarks/augment.py -o docs/results/augment/NAME.json`, then `python benchmarks/augment.py --table
docs/results/augment`.
"""

if __name__ == "__main__":
    main()
