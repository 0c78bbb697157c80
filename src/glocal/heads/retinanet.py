"""RetinaNet on any host: torchvision's, over a pyramid of strides 8 to 128.

Lin et al., "Focal Loss for Dense Object Detection".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torchvision.models.detection import RetinaNet as TorchvisionRetinaNet
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from glocal.heads.pyramid import FeaturePyramid, PyramidNetwork

Target = dict[str, Tensor]
# The data come normalised and at their size; torchvision only pads them to one batch.
AS_THEY_ARE: dict[str, Any] = {"_skip_resize": True, "image_mean": [0.0] * 3, "image_std": [1.0] * 3}


class RetinaNet(nn.Module):
    """Give losses for images with targets, detections in pixels without; labels count from 0."""

    masks = False

    def __init__(self, host: nn.Module, classes: int, **options: Any) -> None:
        super().__init__()
        pyramid = FeaturePyramid(host)
        extra = LastLevelP6P7(pyramid.widths[-1], 256)  # the first further level comes from the host's last map
        self.net = TorchvisionRetinaNet(PyramidNetwork(pyramid, 1, extra), classes, **AS_THEY_ARE, **options)

    def forward(self, images: Sequence[Tensor] | Tensor, targets: Sequence[Target] | None = None) -> Any:
        return self.net(list(images), None if targets is None else list(targets))
