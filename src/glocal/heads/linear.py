"""The plainest segmentation head: one linear layer on the host's last map, scaled up (LIFE, Section 4.2.3)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from glocal.heads.pyramid import Maps, OnHost


class LinearSegmenter(OnHost):
    """Give (B, classes, H, W) scores at the size of the images."""

    def __init__(self, host: nn.Module, classes: int) -> None:
        super().__init__()
        self.maps = Maps(host, (-1,), norm=True)
        self.head = nn.Conv2d(self.maps.widths[0], classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        scores = self.head(self.maps(images)[0])  # (B, classes, h, w)
        return F.interpolate(scores, images.shape[-2:], mode="bilinear")
