"""Semantic FPN on any host: a feature pyramid whose levels are brought to one size and added.

Kirillov et al., "Panoptic Feature Pyramid Networks".
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork

from glocal.heads.pyramid import FeaturePyramid, OnHost


class SemanticFPN(OnHost):
    """Give (B, classes, H, W) scores.

    smp's decoder of that name leaves out the pyramid's 3x3 convolutions (2.4 M parameters), which LIT's Table 8 counts;
    so the pyramid is torchvision's.
    """

    def __init__(self, host: nn.Module, classes: int, channels: int = 128, dim: int = 256) -> None:
        super().__init__()
        self.pyramid = FeaturePyramid(host)
        self.fpn = FeaturePyramidNetwork(self.pyramid.widths, dim)
        self.scales = nn.ModuleList(_scale(dim, channels, doublings) for doublings in range(4))
        self.head = nn.Sequential(nn.Dropout2d(0.1), nn.Conv2d(channels, classes, 1))

    def forward(self, images: Tensor) -> Tensor:
        maps = self.pyramid(images)
        levels = self.fpn(OrderedDict((str(i), each) for i, each in enumerate(maps))).values()
        size = maps[0].shape[-2:]
        grown = [scale(level) for scale, level in zip(self.scales, levels, strict=True)]
        # Maps of odd sides do not double exactly.
        added = sum(F.interpolate(each, size, mode="bilinear") if each.shape[-2:] != size else each for each in grown)
        return F.interpolate(self.head(added), images.shape[-2:], mode="bilinear")


def _scale(dim: int, channels: int, doublings: int) -> nn.Sequential:
    """Convolve and double until the first level's size is reached; the first level is convolved once."""
    layers: list[nn.Module] = []
    for i in range(max(doublings, 1)):
        layers += [
            nn.Conv2d(channels if i else dim, channels, 3, padding=1, bias=False),
            nn.GroupNorm(32 if channels % 32 == 0 else 1, channels),
            nn.ReLU(inplace=True),
        ]
        if doublings:
            layers.append(nn.Upsample(scale_factor=2, mode="bilinear"))
    return nn.Sequential(*layers)
