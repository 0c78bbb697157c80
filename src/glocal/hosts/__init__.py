"""The hosts: one family per file, each a function that lists the sites of a model without touching it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from timm.models.eva import Eva
from timm.models.mlp_mixer import MlpMixer
from timm.models.pit import PoolingVisionTransformer
from timm.models.pvt_v2 import PyramidVisionTransformerV2
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from timm.models.swin_transformer_v2_cr import SwinTransformerV2Cr
from timm.models.tnt import TNT
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from glocal.errors import GlocalError
from glocal.hosts import eva, mixer, pit, pvt, pyramid, swin, t2t, tnt, transformers_vilt, transformers_vit, vit
from glocal.models import LIT, PyramidVisionTransformer, T2TViT
from glocal.site import Site

ADAPTERS: dict[type[nn.Module], Callable[[Any], Iterator[Site]]] = {
    VisionTransformer: vit.sites,
    Eva: eva.sites,
    SwinTransformer: swin.sites,
    SwinTransformerV2: swin.sites,
    SwinTransformerV2Cr: swin.sites,
    PyramidVisionTransformerV2: pvt.sites,
    PyramidVisionTransformer: pyramid.sites,
    LIT: pyramid.sites,
    T2TViT: t2t.sites,
    TNT: tnt.sites,
    PoolingVisionTransformer: pit.sites,
    MlpMixer: mixer.sites,
}


def sites(host: nn.Module) -> list[Site]:
    """List the sites of any known host."""
    for kind in type(host).__mro__:
        if kind in ADAPTERS:
            return list(ADAPTERS[kind](host))
    inner = next((name for name in ("module", "_orig_mod") if isinstance(getattr(host, name, None), nn.Module)), None)
    if inner is not None:  # DataParallel and its kin; a compiled model
        raise GlocalError(
            f"{type(host).__name__} wraps a model, and glocal grafts onto the model itself. Enhance model.{inner}, "
            f"then wrap or compile what comes out."
        )
    if transformers_vit.trunk_of(host) is not None:
        return list(transformers_vit.sites(host))
    if transformers_vilt.trunk_of(host) is not None:
        return list(transformers_vilt.sites(host))
    if type(host).__module__ == "timm.models._features":
        raise GlocalError(
            f"{type(host).__name__} is a finished feature extractor, whose model can no longer be reached safely. "
            f"Enhance first: glocal.create_model(name, *mechanisms, features_only=True)."
        )
    known, more = ", ".join(kind.__name__ for kind in ADAPTERS), ", ".join((*transformers_vit.TRUNKS, "ViltModel"))
    raise GlocalError(
        f"{type(host).__name__} is not a host that glocal knows. It knows: {known}; and of transformers: {more}."
    )
