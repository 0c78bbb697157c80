"""A convolutional stem: small steps into the image instead of one large patch.

Not from the four papers. Xiao et al., "Early Convolutions Help Transformers See Better", is the idea's best-known form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from glocal.errors import GlocalError
from glocal.site import Seam, Site


class StackedStem(nn.Sequential):
    """3x3 convolutions of stride 2 with BatchNorm and ReLU, widths doubling up to `dim`, and a last projection.

    `rest` is what the stride has left after its factors of 2; the last convolution takes it.
    """

    def __init__(self, channels: int, dim: int, halvings: int, rest: int, *, padded: bool = True) -> None:
        widths = [max(1, dim >> (halvings - 1 - i)) for i in range(halvings)] or [dim]
        strides = [2] * halvings or [1]
        super().__init__(*_steps(channels, widths, strides, padded), nn.Conv2d(dim, dim, rest, stride=rest))

    @property
    def weight(self) -> Tensor:
        """The last convolution's weight: hosts ask the one they had for its type."""
        return cast("Tensor", self[-1].weight)

    def fold(self) -> None:
        """Merge each BatchNorm into the convolution before it."""
        for i, (conv, norm) in enumerate(zip(list(self), list(self)[1:], strict=False)):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                self[i], self[i + 1] = fuse_conv_bn_eval(conv, norm), nn.Identity()


def _steps(channels: int, widths: list[int], strides: list[int], padded: bool) -> Iterator[nn.Module]:
    for width, stride in zip(widths, strides, strict=True):
        yield nn.Conv2d(channels, width, 3, stride=stride, padding=1 if padded or stride == 1 else 0, bias=False)
        yield nn.BatchNorm2d(width)
        yield nn.ReLU()
        channels = width


@dataclass(frozen=True)
class ConvStem:
    """Graft `StackedStem` in place of the patch embedding's convolution; the lattice stays the same."""

    positions: bool = True
    """Keep the host's absolute positions; convolutions with padding carry some of that knowledge themselves."""

    def seams(self, preserve: bool) -> tuple[Seam, ...]:
        return (Seam.STEM,) if self.positions else (Seam.STEM, Seam.POSITION)

    def takes(self, site: Site) -> bool:
        return True

    def replaces(self, preserve: bool) -> bool:
        return True

    def graft(self, site: Site, old: nn.Conv2d, *, preserve: bool) -> nn.Module | Tensor | None:
        if preserve:
            raise GlocalError("ConvStem takes the patch embedding's place, so it cannot preserve the host.")
        if site.seam is Seam.POSITION:
            return site.absent
        (stride, other), rest, halvings = old.stride, old.stride[0], 0
        if stride != other:
            raise GlocalError(f"ConvStem needs square patches; this host's are {stride}x{other}.")
        while rest % 2 == 0:
            rest, halvings = rest // 2, halvings + 1
        # An embedding that overlaps without padding (PiT) gives a smaller map, and so do unpadded convolutions.
        padded = old.kernel_size == old.stride or any(int(p) for p in old.padding)
        return StackedStem(old.in_channels, old.out_channels, halvings, rest, padded=padded)
