"""RetinaNet on any host: torchvision's, over a pyramid of strides 8 to 128.

Lin et al., "Focal Loss for Dense Object Detection".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torchvision.models.detection import RetinaNet as TorchvisionRetinaNet
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from glocal.heads.pyramid import FeaturePyramid, OnHost, PyramidNetwork

Target = dict[str, Tensor]


class Batching(GeneralizedRCNNTransform):
    """Pad images to one batch and leave them as they are otherwise: the data come normalised and at their size."""

    def __init__(self) -> None:
        super().__init__(0, 0, [0.0] * 3, [1.0] * 3)

    def normalize(self, image: Tensor) -> Tensor:
        """Return the image."""
        return image

    def resize(self, image: Tensor, target: Target | None = None) -> tuple[Tensor, Target | None]:
        """Return both."""
        return image, target


def in_full_precision(module: nn.Module, args: Any, output: Any) -> Any:
    """Give a head's answers as float32, a forward hook: under autocast torchvision would round boxes to bfloat16."""
    if isinstance(output, Tensor):
        return output.float()
    if isinstance(output, dict):
        return {key: in_full_precision(module, args, each) for key, each in output.items()}
    return type(output)(in_full_precision(module, args, each) for each in output)


class RetinaNet(OnHost):
    """Give losses for images with targets, detections in pixels without; labels count from 0."""

    masks = False

    def __init__(self, host: nn.Module, classes: int, *, dim: int = 256, **options: Any) -> None:
        super().__init__()
        pyramid = FeaturePyramid(host, first=1)
        extra = LastLevelP6P7(pyramid.widths[-1], dim)  # the first further level comes from the host's last map
        self.net = TorchvisionRetinaNet(PyramidNetwork(pyramid, extra, dim), classes, **options)
        self.net.transform = Batching()
        self.net.head.register_forward_hook(in_full_precision)

    def forward(self, images: Sequence[Tensor] | Tensor, targets: Sequence[Target] | None = None) -> Any:
        return self.net(list(images), None if targets is None else list(targets))
