"""Full-size hosts from timm's registry: preserving grafts change nothing, the papers' forms run."""

from __future__ import annotations

import pytest
import torch

from glocal import DTM, LIFE, ContextBroadcast, EarlyMLP, LocalFFN, SqueezeContext, create_model, enhance
from glocal.hosts import sites
from glocal.site import Mechanism, Seam
from tests.contract.cases import error, lively

pytestmark = pytest.mark.slow
NAMES = [
    "vit_tiny_patch16_224",
    "vit_large_patch32_224",
    "deit_small_distilled_patch16_224",
    "deit3_small_patch16_224",
    "vit_small_patch14_reg4_dinov2",
    "vit_giant_patch14_dinov2",
    "vit_base_patch16_siglip_224",
    "vit_base_patch16_clip_224",
    "vit_small_r26_s32_224",
    "vit_base_r50_s16_224",
    "eva02_tiny_patch14_224",
    "vit_small_patch16_dinov3",
    "swin_tiny_patch4_window7_224",
    "swin_base_patch4_window7_224",
    "swinv2_tiny_window8_256",
    "swinv2_cr_tiny_224",
    "pvt_v2_b0",
    "pvt_v2_b2_li",
    "tnt_s_patch16_224",
    "pit_s_distilled_224",
    "mixer_s16_224",
    "gmlp_s16_224",
    "resmlp_12_224",
]


def _offered(model: torch.nn.Module) -> set[Seam]:
    return {site.seam for site in sites(model)}


@pytest.mark.parametrize("name", NAMES)
def test_a_full_size_host_is_preserved(name: str) -> None:
    # SwiGLU feed-forward networks; two of its forty blocks are enough.
    arguments = {"depth": 2, "img_size": 70} if name == "vit_giant_patch14_dinov2" else {}
    plain = lively(create_model(name, num_classes=10, **arguments)).eval()
    wishes: list[Mechanism] = [LIFE(), LocalFFN(), ContextBroadcast(scaled=True), SqueezeContext(), DTM()]
    fitting = [each for each in wishes if _offered(plain).issuperset(each.seams(True))]
    model = enhance(plain, *fitting, preserve=True)
    side = arguments.get("img_size") or plain.default_cfg["input_size"][-1]
    x = torch.randn(1, 3, side, side)
    with torch.no_grad():
        assert error(model(x), plain(x)) <= 1e-5
    assert not model.glocal.gone


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "pvt_v2_b1", "pit_xs_224"])
def test_the_papers_forms_run_at_full_size(name: str) -> None:
    model = create_model(name, num_classes=10)
    wishes: list[Mechanism] = [LocalFFN(), ContextBroadcast(), DTM(), EarlyMLP()]
    wishes = [each for each in wishes if _offered(model).issuperset(each.seams(False))]
    wishes = [each for each in wishes if not isinstance(each, EarlyMLP) or name != "deit_tiny_patch16_224"]
    out = enhance(model, *wishes)(torch.randn(2, 3, 224, 224))
    out.sum().backward()
    assert out.isfinite().all()
