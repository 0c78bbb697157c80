"""timm's MlpMixer family: no attention, so what mixes tokens there is a linear layer over positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from timm.models.mlp_mixer import MixerBlock, MlpMixer
from torch import Tensor, nn

from glocal.hosts.feed_forward import feed_forward
from glocal.site import LatticeCell, Seam, Site


class FreeFeedForward(MixerBlock):
    """A Mixer block without drop path after its channel network; the host shares one with the token network."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.mlp_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2))
        return x + self.mlp_channels(self.norm2(x))


def sites(host: MlpMixer) -> Iterator[Site]:
    """List what the host offers."""
    blocks = list(host.blocks.children())
    cell = LatticeCell(host.stem, _grid)
    if isinstance(host.stem.proj, nn.Conv2d):
        yield Site(Seam.STEM, "stem.proj", host.embed_dim)
    for i, block in enumerate(blocks):
        at: dict[str, Any] = {"layer": i, "depth": len(blocks), "dim": host.embed_dim, "cell": cell}
        if isinstance(block, MixerBlock):
            at = {**at, "branch": ("norm2",), "freed": FreeFeedForward}
            yield from feed_forward(block.mlp_channels, f"blocks.{i}.mlp_channels", **at)
        else:  # ResMLP and gMLP scale or gate their branch themselves
            for site in feed_forward(block.get_submodule("mlp_channels"), f"blocks.{i}.mlp_channels", **at):
                reason = f"{type(block).__name__} scales or gates its feed-forward branch itself"
                yield site if site.seam is Seam.HIDDEN else Site(Seam.FFN, site.path, **at, plain=reason)


def _grid(stem: Any, args: tuple[Any, ...], output: Any) -> tuple[int, int]:
    return stem.grid_size  # a Mixer is built for one image size
