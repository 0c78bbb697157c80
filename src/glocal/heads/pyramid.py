"""Feature maps out of any host: four of them, each half the size of the one before.

Hierarchical hosts have such maps; a plain vision transformer gives four of its layers, brought to four sizes as
El-Nouby et al., "XCiT: Cross-Covariance Image Transformers", do it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torchvision.ops.feature_pyramid_network import ExtraFPNBlock, FeaturePyramidNetwork

from glocal.errors import GlocalError
from glocal.hosts import sites
from glocal.mechanisms import ContextBroadcast
from glocal.site import Mechanism, Seam, pick


class Maps(nn.Module):
    """Take maps out of a host, and drop what lies behind them; `norm` keeps the host's last norm."""

    def __init__(self, host: nn.Module, indices: Sequence[int], *, norm: bool = False) -> None:
        super().__init__()
        info = feature_info(host)
        self.indices = [index % len(info) for index in indices]
        self.taken = sorted(set(self.indices))
        self.norm = norm
        self.widths = [info[index][0] for index in self.indices]
        self.strides = [info[index][1] for index in self.indices]
        prune: Any = getattr(host, "prune_intermediate_layers", None)
        if prune is not None:  # parameters that no map needs would be counted, and would stop DDP
            prune(self.taken, prune_norm=not norm, prune_head=True)
        self.host = host
        self.lr_scale: dict[str, float] = {}

    def forward(self, images: Tensor) -> list[Tensor]:
        take: Any = self.host.forward_intermediates
        try:
            maps = take(images, indices=self.taken, norm=self.norm, output_fmt="NCHW", intermediates_only=True)
        except AssertionError as error:
            raise GlocalError(
                f"{type(self.host).__name__} was built for another image size: {error} Bring all images to one size "
                f"(data.dense.fit: square), or build a host that takes any (dynamic_img_size, strict_img_size: false)."
            ) from None
        return [maps[self.taken.index(index)] for index in self.indices]


class OnHost(nn.Module):
    """A module around a host that speaks for it: which parameters want no weight decay."""

    def no_weight_decay(self) -> set[str]:
        """Name them as the host does, wherever it sits."""
        hosts = [(path, each.host) for path, each in self.named_modules() if isinstance(each, Maps)]
        listed = [(path, getattr(host, "no_weight_decay", set)()) for path, host in hosts]
        return {f"{path}.host.{name}" for path, names in listed for name in names}


class FeaturePyramid(nn.Module):
    """Give four maps, the first at a quarter of the patch size of a plain host, or a hierarchical host's own.

    `first` leaves the finest ones out, and with them what would make them.
    """

    def __init__(self, host: nn.Module, first: int = 0) -> None:
        super().__init__()
        self.maps = Maps(host, feeding(host)[first:])
        self.widths = self.maps.widths
        self.plain = is_plain(host)
        if self.plain:
            self.resize = nn.ModuleList(_resizers(self.widths[0])[first:])
            self.strides = [self.maps.strides[0] * 2**step // 4 for step in range(first, 4)]
        else:
            self.strides = self.maps.strides

    def forward(self, images: Tensor) -> list[Tensor]:
        maps = self.maps(images)
        return [resize(each) for resize, each in zip(self.resize, maps, strict=True)] if self.plain else maps


class PyramidNetwork(nn.Module):
    """Join maps top-down into levels of one width, named as torchvision's detectors want them."""

    def __init__(self, pyramid: FeaturePyramid, extra: ExtraFPNBlock, dim: int = 256) -> None:
        super().__init__()
        self.pyramid = pyramid
        self.fpn = FeaturePyramidNetwork(pyramid.widths, dim, extra)
        self.out_channels = dim

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return self.fpn(OrderedDict((str(level), each) for level, each in enumerate(self.pyramid(images))))


def feature_info(host: nn.Module) -> list[tuple[int, int]]:
    """List (channels, stride) of the maps a host can give."""
    listed: Any = getattr(host, "feature_info", None)
    if listed is None or not hasattr(host, "forward_intermediates"):
        raise GlocalError(
            f"{type(host).__name__} gives no feature maps, so no dense head fits it. "
            f"Hosts that do: ViT, DeiT, Swin, PVT, LIT, ResNet."
        )
    return [(each["num_chs"], each["reduction"]) for each in listed]


def is_plain(host: nn.Module) -> bool:
    """Tell whether all maps of a host have one size."""
    return len({stride for _, stride in feature_info(host)}) == 1


def feeding(host: nn.Module) -> list[int]:
    """Choose the four maps a pyramid takes: layers 4, 6, 8, 12 of 12 for plain hosts, else the last four."""
    info = feature_info(host)
    if is_plain(host):
        return [max(len(info) * share // 12 - 1, 0) for share in (4, 6, 8, 12)]
    if len(info) < 4:
        raise GlocalError(f"{type(host).__name__} has {len(info)} stages; a pyramid takes four.")
    return list(range(len(info) - 4, len(info)))


def spared(host: nn.Module, mechanisms: Sequence[Mechanism]) -> tuple[Mechanism, ...]:
    """Keep Context Broadcasting out of the blocks whose output the pyramid takes (CB, Section 4.4)."""
    if not any(isinstance(each, ContextBroadcast) for each in mechanisms):
        return tuple(mechanisms)
    blocks = [site for site in sites(host) if site.seam is Seam.FFN]
    stages = {site.stage: site.layer for site in blocks}  # the last layer of each stage
    fed = set(feeding(host)) if is_plain(host) else set(stages.values())
    return tuple(_without(each, fed, blocks[0].depth) for each in mechanisms)


def _without(mechanism: Mechanism, fed: set[int], depth: int) -> Mechanism:
    if not isinstance(mechanism, ContextBroadcast):
        return mechanism
    layers = pick(mechanism.layers or ("all" if mechanism.scaled else "upper"), depth) - fed
    if not layers:
        raise GlocalError("Context Broadcasting is left no layer: all it was given feed the pyramid. Give it more.")
    return replace(mechanism, layers=tuple(sorted(layers)))


def _resizers(dim: int) -> list[nn.Module]:
    def double() -> nn.ConvTranspose2d:
        return nn.ConvTranspose2d(dim, dim, 2, stride=2)

    quadruple = nn.Sequential(double(), nn.BatchNorm2d(dim), nn.GELU(), double())
    return [quadruple, double(), nn.Identity(), nn.MaxPool2d(2)]
