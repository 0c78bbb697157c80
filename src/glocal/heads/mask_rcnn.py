"""Mask R-CNN on any host: torchvision's, over a pyramid of strides 4 to 64.

He et al., "Mask R-CNN".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN as TorchvisionMaskRCNN
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from glocal.heads.pyramid import FeaturePyramid, OnHost, PyramidNetwork
from glocal.heads.retinanet import Batching, Target, in_full_precision


class MaskRCNN(OnHost):
    """Give losses for images with targets, detections with masks in pixels without; labels count from 0."""

    masks = True

    def __init__(self, host: nn.Module, classes: int, *, dim: int = 256, **options: Any) -> None:
        super().__init__()
        network = PyramidNetwork(FeaturePyramid(host), LastLevelMaxPool(), dim)
        self.net = TorchvisionMaskRCNN(network, classes + 1, **options)
        self.net.transform = Batching()
        parts: Any = (self.net.rpn.head, self.net.roi_heads.box_predictor, self.net.roi_heads.mask_predictor)
        for part in parts:
            part.register_forward_hook(in_full_precision)

    def forward(self, images: Sequence[Tensor] | Tensor, targets: Sequence[Target] | None = None) -> Any:
        if targets is not None:  # torchvision counts the background as class 0
            targets = [{**each, "labels": each["labels"] + 1} for each in targets]
        answer = self.net(list(images), targets)
        return answer if self.training else [{**each, "labels": each["labels"] - 1} for each in answer]
