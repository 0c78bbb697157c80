"""The architectures that timm lacks, in timm's registry: importing this package registers them."""

from glocal.models.lit import LIT
from glocal.models.pvt import PyramidVisionTransformer
from glocal.models.t2t_vit import T2TViT
from glocal.models.vit_extra import ExtraVisionTransformer

__all__ = ["LIT", "ExtraVisionTransformer", "PyramidVisionTransformer", "T2TViT"]
