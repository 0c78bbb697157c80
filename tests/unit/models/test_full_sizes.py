"""Every registered model at its full size: what it counts, and that it runs, learns and takes another size."""

from __future__ import annotations

import pytest
import timm
import torch

from glocal.models import lit, pvt, t2t_vit, vit_extra

# Published or released counts; PVT-M/L, T2T-14/19/24 as their papers print them, in millions.
PARAMETERS = {
    "pvt_tiny": 13_229_288,
    "pvt_small": 24_485_864,
    "pvt_small_msa": 20_185_384,
    "lit_tiny": 19_886_272,
    "lit_small": 27_973_720,
    "lit_medium": 49_372_264,
    "lit_base": 87_292_384,
    "lit_tiny_star": 19_869_864,
    "lit_small_star": 27_953_536,
    "t2t_vit_7": 4_310_222,
    "t2t_vit_12": 6_941_902,
}
MILLIONS = {
    "pvt_medium": 44.2,
    "pvt_large": 61.4,
    "t2t_vit_10": 5.9,
    "t2t_vit_14": 21.5,
    "t2t_vit_19": 39.2,
    "t2t_vit_24": 64.1,
    "t2t_vit_t_14": 21.5,
    "t2t_vit_t_19": 39.2,
    "t2t_vit_t_24": 64.1,
}
PYRAMIDS = {**pvt.SHAPES, **lit.SHAPES}
NAMES = [*PYRAMIDS, *t2t_vit.SHAPES, *vit_extra.SHAPES]


def count(name: str, **arguments: object) -> int:
    with torch.device("meta"):
        return sum(each.numel() for each in timm.create_model(name, **arguments).parameters())


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_equal_the_released_models(name: str) -> None:
    assert count(name) == PARAMETERS[name]


@pytest.mark.parametrize("name", MILLIONS)
def test_parameters_match_the_printed_ones(name: str) -> None:
    assert count(name) / 1e6 == pytest.approx(MILLIONS[name], abs=0.05)


@pytest.mark.parametrize(
    "stages, wanted", [((1, 2, 3), 20_135_080), ((2, 3), 19_869_864), ((3,), 17_400_744), ((), 14_245_800)], ids=str
)
def test_attention_leaves_any_set_of_stages(stages: tuple[int, ...], wanted: int) -> None:
    assert count("pvt_small_msa", attention_stages=stages) == wanted  # LIT, Table 5


@pytest.mark.parametrize("size", ["tiny", "small", "base"])
def test_the_extra_blocks_of_a_vit_cost_nearly_the_same(size: str) -> None:
    plain = count(f"vit_{size}_patch16_224", depth=8)
    attention, network = (count(f"vit_{size}_patch16_224_depth8_{extra}") - plain for extra in ("msa", "mlp"))
    assert network == pytest.approx(attention, rel=2e-3)
    assert network > 0


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_in_timms_registry(name: str) -> None:
    assert timm.is_model(name)
    assert timm.list_models(name) == [name]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_full_model_runs_learns_and_takes_another_size(name: str) -> None:
    torch.manual_seed(0)
    vit = name.startswith("vit")
    model = timm.create_model(name, **({"dynamic_img_size": True} if vit else {}))
    small = "_32" in name
    first, second = ((32, 32), (48, 64)) if small else ((224, 224), (192, 256))
    with torch.no_grad():
        assert model.eval()(torch.randn(1, 3, *second)).shape == (1, 1000)
        assert model(torch.randn(1, 3, *first)).isfinite().all()
    model.train()(torch.randn(2, 3, *first)).square().mean().backward()
    learned = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert all(p.grad is not None and p.grad.isfinite().all() for p in learned.values())
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in learned.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", PYRAMIDS)
def test_a_full_pyramid_gives_features_at_four_strides(name: str) -> None:
    extractor = timm.create_model(name, features_only=True).eval()
    with torch.no_grad():
        maps = extractor(torch.randn(1, 3, 224, 288))
    assert [tuple(each.shape[2:]) for each in maps] == [(56, 72), (28, 36), (14, 18), (7, 9)]
    assert [each.shape[1] for each in maps] == extractor.feature_info.channels()
