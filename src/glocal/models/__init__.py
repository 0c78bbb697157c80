"""The architectures that timm lacks, in timm's registry: importing this package registers them."""

from glocal.models.lit import LIT
from glocal.models.pvt import PyramidVisionTransformer

__all__ = ["LIT", "PyramidVisionTransformer"]
