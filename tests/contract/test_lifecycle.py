"""What a model goes through besides forward passes: sizes, recomputation, tracing, precision, its own calls."""

from __future__ import annotations

import copy
import gc
import pickle
from functools import partial

import pytest
import torch
from timm.layers import DropPath
from timm.models._features import FeatureGetterNet
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from glocal import DTM, LIFE, ContextBroadcast, ConvStem, EarlyMLP, GlocalError, LatticeError, LocalFFN, enhance
from tests.contract.cases import HOSTS, MECHANISMS, error, host, images, lively

ALL = {  # the fullest mixture each host takes
    "vit": (LIFE(), LocalFFN(), ContextBroadcast(), ConvStem()),
    "vit_registers": (LIFE(), LocalFFN(), ContextBroadcast(scaled=True)),
    "deit_distilled": (LIFE(), LocalFFN(), ContextBroadcast()),
    "vit_swiglu": (LIFE(), ContextBroadcast(at="both")),
    "eva": (LIFE(), LocalFFN(), ContextBroadcast(at="both")),
    "swin": (LIFE(layers="upper"), EarlyMLP(stages=(0,)), LocalFFN(), ContextBroadcast(), DTM(), ConvStem()),
    "swinv2": (LIFE(), LocalFFN(), ContextBroadcast(), DTM()),
    "swinv2_cr": (LIFE(), LocalFFN(), ContextBroadcast(at="both"), DTM()),
    "pvt_v2": (LocalFFN(), ContextBroadcast(), DTM(), EarlyMLP(stages=(0,))),
    "tnt": (LocalFFN(), ContextBroadcast()),
    "pit": (LIFE(), LocalFFN(), ContextBroadcast(), DTM()),
    "mixer": (LocalFFN(), ContextBroadcast(), ConvStem()),
    "hf_vit": (LIFE(), LocalFFN(), ContextBroadcast(), ConvStem()),
    "hf_dinov3": (LIFE(), LocalFFN(), ContextBroadcast(at="both")),
    "hf_siglip": (LIFE(), LocalFFN(), ContextBroadcast(), ConvStem()),
}
every_host = pytest.mark.parametrize("name", HOSTS)


def mixture(name: str) -> nn.Module:
    return lively(enhance(host(name), *ALL[name])).eval()


@every_host
def test_the_order_of_arguments_does_not_matter(name: str) -> None:
    a = enhance(host(name), *ALL[name])
    b = enhance(host(name), *reversed(ALL[name]))
    assert [n for n, _ in a.named_modules()] == [n for n, _ in b.named_modules()]
    b.load_state_dict(a.state_dict())
    assert torch.equal(a.eval()(images(name)), b.eval()(images(name)))


@every_host
def test_a_host_takes_mechanisms_one_after_the_other(name: str) -> None:
    x, together = images(name), mixture(name)
    one_by_one = copy.deepcopy(host(name))
    for each in ALL[name]:
        one_by_one = enhance(one_by_one, each)
    assert sorted(p.numel() for p in one_by_one.parameters()) == sorted(p.numel() for p in together.parameters())
    assert len(one_by_one.glocal.steps) == len(ALL[name])
    assert one_by_one.eval()(x).isfinite().all()


@every_host
def test_new_and_non_square_sizes(name: str) -> None:
    case, size = HOSTS[name], (32, 64)
    if case.resize == "rebuild":
        model = lively(enhance(case.build(img_size=size), *ALL[name])).eval()
    else:
        model = mixture(name)
        if case.resize == "set_input_size":
            window = {"window_size": (4, 4)} if "swin" in name else {}
            model.set_input_size(img_size=size, **window)
    wide, tall = torch.randn(2, 3, *size), None
    assert model(wide).shape == (2, 5)
    if case.resize == "free":
        tall = wide.transpose(2, 3)
        assert not torch.allclose(model(tall), model(wide))


@pytest.mark.parametrize("name", [name for name in HOSTS if name != "pit"])  # PiT has no checkpointing
@pytest.mark.parametrize("preserve", [False, True])
def test_recomputation_uses_the_lattice_of_its_own_image(name: str, preserve: bool) -> None:
    mechanisms = (LocalFFN(),) if name in ("pvt_v2", "tnt", "mixer") else (LIFE(), LocalFFN())
    mechanisms = (LIFE(),) if name == "vit_swiglu" and not preserve else mechanisms
    model = lively(enhance(host(name), *mechanisms, preserve=preserve)).train()
    for each in model.modules():  # batch statistics and dropout would differ between the two passes
        if isinstance(each, (nn.BatchNorm2d, nn.Dropout, DropPath)):
            each.eval()
    free = HOSTS[name].resize == "free"
    sizes = [((32, 32), (48, 48)), ((32, 64), (64, 32))] if free else [((32, 32), (32, 32))]
    for first, second in sizes:
        pair = torch.randn(2, 3, *first), torch.randn(2, 3, *second)
        wanted, got = _gradients(model, pair, False), _gradients(model, pair, True)
        assert wanted.keys() == got.keys()
        assert all(torch.allclose(got[key], wanted[key], atol=1e-6) for key in wanted), (first, second)


def _gradients(model: nn.Module, pair: tuple[torch.Tensor, ...], checkpointing: bool) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model.set_grad_checkpointing(checkpointing)
    sum(model(x).square().mean() for x in pair).backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


@every_host
def test_torch_func_gives_the_gradients_of_autograd(name: str) -> None:
    model, x = mixture(name), images(name)
    weights, rest = dict(model.named_parameters()), dict(model.named_buffers())
    functional = torch.func.grad(lambda w: torch.func.functional_call(model, (w, rest), (x,)).square().mean())(weights)
    model(x).square().mean().backward()
    wanted = {key: each.grad for key, each in weights.items() if each.grad is not None}
    assert all(torch.allclose(functional[key], each, rtol=1e-3, atol=1e-6) for key, each in wanted.items())


@every_host
def test_one_graph_without_breaks(name: str) -> None:
    model, x = mixture(name), images(name)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert error(compiled(x), model(x)) <= 1e-5


@every_host
def test_export_gives_the_same_outputs_and_leaves_the_model_usable(name: str) -> None:
    model, x = mixture(name), images(name)
    with torch.no_grad():
        wanted = model(x)
        program = torch.export.export(model, (x,), strict=False)
        assert error(program.module()(x), wanted) <= 1e-5
        assert torch.equal(pickle.loads(pickle.dumps(copy.deepcopy(model)))(x), wanted)
        assert torch.equal(model(x), wanted)


def test_a_dynamic_export_takes_other_image_sizes() -> None:
    model = lively(enhance(host("vit"), LIFE(), LocalFFN(), ContextBroadcast())).eval()
    rows, columns = torch.export.Dim("rows", min=2, max=16), torch.export.Dim("columns", min=2, max=16)
    with torch.no_grad():
        program = torch.export.export(
            # At its native size the host itself skips resampling its positions, which pins the size.
            model,
            (torch.randn(2, 3, 40, 48),),
            dynamic_shapes=({2: 8 * rows, 3: 8 * columns},),
            strict=False,
        )
        other = torch.randn(2, 3, 64, 40)
        assert error(program.module()(other), model(other)) <= 1e-5


@every_host
def test_mixed_precision_trains(name: str) -> None:
    model = enhance(host(name), *ALL[name]).train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(images(name))
    out = out[0] if isinstance(out, tuple) else out
    out.float().square().mean().backward()
    assert all(each.grad.isfinite().all() for each in model.parameters() if each.grad is not None)


@every_host
def test_half_precision_weights_run(name: str) -> None:
    assert mixture(name).bfloat16()(images(name).bfloat16()).isfinite().all()


@every_host
def test_the_hosts_own_calls_still_work(name: str) -> None:
    model, x = mixture(name), images(name)
    if hasattr(model, "forward_intermediates"):
        _, features = model.forward_intermediates(x)
        assert all(each.isfinite().all() for each in features)
        extractor = FeatureGetterNet(copy.deepcopy(model), out_indices=(0, 1))
        for got, wanted in zip(extractor(x), features, strict=False):
            assert got.shape == wanted.shape
        with pytest.raises(GlocalError, match="feature extractor"):
            enhance(extractor, LIFE())
    if hasattr(model, "reset_classifier"):
        model.reset_classifier(3)
        assert model(x).shape == (2, 3)


@pytest.mark.parametrize(
    "name", [name for name in HOSTS if name[:3] != "hf_" and hasattr(HOSTS[name].build(), "init_weights")]
)
@pytest.mark.parametrize("mode", ["", "jax", "moco", "reset"])
def test_a_hosts_initialisation_keeps_an_identity_start(name: str, mode: str) -> None:
    if "vit" not in name and "deit" not in name and mode not in ("", "jax"):
        pytest.skip("the host has no such mode")
    mechanisms = [MECHANISMS["cbs"], MECHANISMS["squeeze"], MECHANISMS["uniform_c"]]
    mechanisms = [m for m in mechanisms if not (name == "mixer" and m is MECHANISMS["uniform_c"])]
    mechanisms += [] if name in ("tnt", "mixer", "pvt_v2") else [LIFE()]
    mechanisms += [DTM()] if "swin" in name else []
    model = enhance(host(name), *mechanisms, LocalFFN(), preserve=True).eval()
    try:
        model.init_weights(mode) if mode else model.init_weights()
    except (AssertionError, TypeError):
        pytest.skip("the host has no such mode")
    plain = copy.deepcopy(host(name))
    plain.load_state_dict(
        {
            k.replace("inner.host.", "").replace("host.", "").replace("downsample.inner", "downsample"): v
            for k, v in model.state_dict().items()
            if k not in model.glocal.new
        },
        strict=True,
    )
    with torch.no_grad():  # a freshly initialised head may be all zero, so look before it
        assert error(model.forward_features(images(name)), plain.forward_features(images(name))) <= 1e-5


def test_two_copies_do_not_share_their_lattice() -> None:
    model = mixture("vit")
    twin = copy.deepcopy(model)
    x, other = torch.randn(1, 3, 32, 64), torch.randn(1, 3, 64, 32)
    wanted = model(x)
    twin(other)
    assert torch.equal(model(x), wanted)
    cells = [m.cell for m in model.modules() if hasattr(m, "cell")]
    assert len({id(cell) for cell in cells}) == 1
    assert not {id(cell) for cell in cells} & {id(m.cell) for m in twin.modules() if hasattr(m, "cell")}


def test_patch_dropout_is_refused_with_a_remedy() -> None:
    build = partial(VisionTransformer, img_size=32, patch_size=8, embed_dim=24, depth=1, num_heads=2)
    model = enhance(build(patch_drop_rate=0.5), LIFE()).train()
    with pytest.raises(LatticeError, match="patch_drop_rate=0"):
        model(torch.randn(1, 3, 32, 32))


def test_remembered_inputs_are_forgotten_with_their_tensors() -> None:
    model = mixture("vit").train()
    model(images("vit")).sum().backward()
    gc.collect()
    cell = next(m.cell for m in model.modules() if hasattr(m, "cell"))
    assert len(cell._seen) == 0
