"""UperNet on any host: pyramid pooling on the last map, a top-down pyramid, all levels fused.

Xiao et al., "Unified Perceptual Parsing for Scene Understanding".
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from glocal.errors import GlocalError
from glocal.heads.pyramid import FeaturePyramid, OnHost


class UperNet(OnHost):
    """Give (B, classes, H, W) scores; in training a second, auxiliary answer from the third map too.

    The counts of CB's Table 6 need 512 channels for every host; its text says 192, 384 and 512.
    """

    def __init__(self, host: nn.Module, classes: int, channels: int = 512, aux_channels: int = 256) -> None:
        super().__init__()
        self.pyramid = FeaturePyramid(host)
        widths = self.pyramid.widths
        self.decoder = _decoder(widths, channels)
        self.head = nn.Sequential(nn.Dropout2d(0.1), nn.Conv2d(channels, classes, 1))
        self.aux_head = nn.Sequential(
            nn.Conv2d(widths[2], aux_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(aux_channels),
            nn.ReLU(inplace=True),
            nn.Dropout2d(0.1),
            nn.Conv2d(aux_channels, classes, 1),
        )

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        maps = self.pyramid(images)
        size = images.shape[-2:]
        # smp's decoder skips the maps at full and half size, which no host here has.
        answer = F.interpolate(self.head(self.decoder([images, images, *maps])), size, mode="bilinear")
        if not self.training:
            return answer
        return answer, F.interpolate(self.aux_head(maps[2]), size, mode="bilinear")


def _decoder(widths: list[int], channels: int) -> nn.Module:
    try:
        from segmentation_models_pytorch.decoders.upernet.decoder import UPerNetDecoder
    except ImportError:
        raise GlocalError("UperNet's decoder comes with an extra: pip install 'glocal[segment]'.") from None
    decoder = UPerNetDecoder([3, 3, *widths], encoder_depth=5, decoder_channels=channels)
    decoder.feature_norms = nn.ModuleList(nn.Identity() for _ in widths)  # smp's addition; the paper has none
    return decoder
