"""Where a model attends: its attention modules in order, and the lattice each of them sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from timm.models.tnt import TNT
from timm.models.vision_transformer import DiffParallelScalingBlock
from torch import nn
from torch.utils.hooks import RemovableHandle

from glocal.errors import GlocalError
from glocal.explain.geometry import Geometry, geometry_of
from glocal.explain.windows import Windows
from glocal.hosts import ADAPTERS, sites, transformers_vit
from glocal.lattice import Lattice
from glocal.site import LatticeCell, Seam, Site


@dataclass
class Place:
    """One attention module of a model."""

    path: str
    module: nn.Module
    group: str  # "self" is the chain of layers; others, such as TNT's inner attention, stand beside it
    layer: int
    depth: int
    stage: int = 0
    class_token: bool = False
    lattice: Callable[[int], Lattice | None] = field(default=lambda count: None, repr=False)
    windows: Callable[[], Windows | None] = field(default=lambda: None, repr=False)

    def lattices(self, queries: int, keys: int, windows: Windows | None) -> tuple[Lattice | None, Lattice | None]:
        """Give the lattices of so many queries and keys; None where they sit on none, as object queries do."""
        if windows is not None:
            return windows.lattice, windows.lattice
        own = None if self.group in ("decoder", "cross") else self.lattice(queries)
        if own is not None and len(own) == queries:
            reduced = own if queries == keys else _reduced(self.module, own)
            return own, reduced if reduced is not None and len(reduced) == keys else None
        other = None if self.group == "decoder" else self.lattice(keys)  # one query pools a map, or many look at one
        return None, other if other is not None and len(other) == keys else None


def places(model: nn.Module) -> tuple[list[Place], list[RemovableHandle]]:
    """List a model's attention modules, first layer first, and the hooks that follow their lattices."""
    found = {path: module for path, module in model.named_modules() if _attends(module)}
    _refuse(model, found)
    prefix, host, offered = _host_in(model)
    if offered:
        inside = {path.removeprefix(prefix): module for path, module in found.items() if path.startswith(prefix)}
        listed = list(_of_host(host, inside, offered))
        for place in listed:
            place.path = prefix + place.path
        whole = not prefix  # a head on the host takes its patches, not its class token
        listed = [place if whole else replace(place, class_token=False) for place in listed]
        listed += _of_head(found, listed)
        handles = [handle for site in offered if site.cell is not None for handle in site.cell.install()]
        return listed, handles
    geometry = geometry_of(model)
    return list(_of_others(found, geometry)), geometry.install() if geometry else []


def _attends(module: nn.Module) -> bool:
    """Tell whether a module computes attention itself, by its own flag or name, and no child does."""
    if type(module).__module__.startswith("glocal.mechanisms") or not _named_so(module):
        return False
    return not any(_named_so(each) for each in module.modules() if each is not module)


def _named_so(module: nn.Module) -> bool:
    return hasattr(type(module), "fused_attn") or "fused_attn" in vars(module) or "Attention" in type(module).__name__


def _refuse(model: nn.Module, found: dict[str, nn.Module]) -> None:
    import torch

    if type(model).__name__ == "OptimizedModule" or getattr(model, "_compiled_call_impl", None) is not None:
        raise GlocalError(
            "the model is compiled, and a compiled graph cannot be watched. Watch the model it was made from."
        )
    if any(isinstance(each, DiffParallelScalingBlock) for each in found.values()):
        raise GlocalError(
            "DiffParallelScalingBlock subtracts one attention map from another, so it has no map to show."
        )
    if torch.backends.mha.get_fastpath_enabled() and any(
        isinstance(m, nn.TransformerEncoderLayer) for m in model.modules()
    ):
        raise GlocalError(
            "nn.TransformerEncoderLayer may run as one kernel that no hook can look into. "
            "Call torch.backends.mha.set_fastpath_enabled(False) first."
        )
    if not found:
        raise GlocalError(f"{type(model).__name__} has no attention, so there is nothing to watch.")


def _host_in(model: nn.Module) -> tuple[str, nn.Module, list[Site]]:
    """Find the host that glocal knows, the model itself or one inside it, as heads have: path, host, sites."""
    for path, module in model.named_modules():
        if any(kind in ADAPTERS for kind in type(module).__mro__):
            return f"{path}." if path else "", module, sites(module)
    return "", model, sites(model) if transformers_vit.trunk_of(model) is not None else []


def _of_head(found: dict[str, nn.Module], listed: list[Place]) -> list[Place]:
    """List the attention of a head that sits on a host, such as DETR's."""
    known = {place.path for place in listed}
    others = [(path, module) for path, module in found.items() if path not in known]
    return [Place(path, module, "head", i, len(others)) for i, (path, module) in enumerate(others)]


def _of_host(model: nn.Module, found: dict[str, nn.Module], offered: list[Site]) -> Iterator[Place]:
    """Join attention modules with the host's sites, which know layers and lattices."""
    has_class = _has_class_token(model)
    others = 0
    for path, module in found.items():
        site = _site_of(path, offered)
        if site is not None:
            place = Place(path, module, "self", site.layer, site.depth, site.stage, class_token=has_class)
            yield _with_lattice(model, place, site, offered)
        elif isinstance(model, TNT):
            inner = Place(path, module, "inner", others, len(model.blocks))
            inner.lattice = _Fixed(Lattice(*model.pixel_embed.new_patch_size))
            others += 1
            yield inner
        else:
            yield _beside(Place(path, module, "other", others, 1), offered)
            others += 1


def _beside(place: Place, offered: list[Site]) -> Place:
    """Give an attention outside the chain of layers its lattice: that of its own block, or the last map, for a pool."""
    block = place.path.rpartition(".")[0]
    placed = [site for site in offered if site.cell is not None and site.whole]
    own = [site for site in placed if block and site.path.rpartition(".")[0] == block]
    for site in (own or placed)[-1:]:
        assert site.cell is not None
        place.lattice = _Read(site.cell)
    if own:
        place.group, place.layer, place.depth = "tokeniser", own[0].layer, own[0].depth
    return place


def _site_of(path: str, offered: list[Site]) -> Site | None:
    """Find the site an attention belongs to: its own, or that of the block it is the whole of."""
    seams = (Seam.ATTENTION, Seam.MIXED, Seam.HIDDEN)
    for seam in seams:
        for site in offered:
            if site.seam is not seam:
                continue
            own = path == site.path or path.startswith(f"{site.path}.")
            if own or (seam is not Seam.ATTENTION and site.path.startswith(f"{path}.")):
                return site
    return None


def _with_lattice(model: nn.Module, place: Place, site: Site, offered: list[Site]) -> Place:
    if site.whole and site.cell is not None:
        place.lattice = _Read(site.cell)
    elif not site.whole:
        block: Any = model.get_submodule(site.path.rpartition(".")[0])
        around = next(
            s for s in offered if s.layer == site.layer and s.seam in (Seam.FFN, Seam.HIDDEN) and s.cell is not None
        )
        assert around.cell is not None
        read = _Read(around.cell)
        place.lattice = read
        place.windows = _Cut(block, read)
    return place


def _of_others(found: dict[str, nn.Module], geometry: Geometry | None) -> Iterator[Place]:
    """List the attention of a model that is no host of glocal's, in the order of its modules."""
    for i, (path, module) in enumerate(found.items()):
        place = Place(path, module, "self" if geometry is None else geometry.group(path), i, len(found))
        if geometry is not None:
            place.class_token = geometry.class_token
            place.lattice = geometry.lattice
        yield place


class _Fixed:
    def __init__(self, lattice: Lattice) -> None:
        self._lattice = lattice

    def __call__(self, count: int) -> Lattice | None:
        return self._lattice


class _Read:
    def __init__(self, cell: LatticeCell) -> None:
        self._cell = cell

    def __call__(self, count: int) -> Lattice:
        return self._cell.read()


class _Cut:
    def __init__(self, block: Any, lattice: _Read) -> None:
        self._block = block
        self._lattice = lattice

    def __call__(self) -> Windows:
        return Windows(self._lattice(0), tuple(self._block.window_size), tuple(self._block.shift_size))


def _reduced(attention: Any, queries: Lattice) -> Lattice | None:
    """PVT's keys: a strided convolution of the map, or a pool to a fixed size."""
    pool, sr = getattr(attention, "pool", None), getattr(attention, "sr", None)
    if isinstance(pool, nn.AdaptiveAvgPool2d):
        side: Any = pool.output_size
        height, width = (side, side) if isinstance(side, int) else side
        return Lattice(height, width, 0)
    if isinstance(sr, nn.Conv2d):
        sides = zip((queries.height, queries.width), sr.kernel_size, sr.stride, strict=True)
        height, width = ((side - kernel) // stride + 1 for side, kernel, stride in sides)
        return Lattice(height, width, 0)
    return None


def _has_class_token(model: Any) -> bool:
    if hasattr(model, "has_class_token"):
        return bool(model.has_class_token)
    return any(name.rpartition(".")[2] in ("cls_token", "class_embedding") for name, _ in model.named_parameters())
