"""What holds for every kernel on any lattice: its numbers are those of plain PyTorch in float64.

Kernels run on a GPU, or on the CPU under Triton's interpreter; `tests/unit/kernels/test_interpreted.py` starts that.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import timm
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import glocal
from glocal.kernels import batch_hidden as batch_hidden_module
from glocal.kernels import depthwise as depthwise_module
from glocal.kernels import hidden as hidden_module
from glocal.kernels import mean as mean_module
from glocal.kernels import multi_scale as multi_scale_module
from glocal.kernels.batch_hidden import batch_hidden_reference
from glocal.kernels.deform import sample_taps_reference
from glocal.kernels.depthwise import depthwise_reference
from glocal.kernels.hidden import hidden_reference
from glocal.kernels.multi_scale import multi_scale_reference
from glocal.lattice import Lattice
from glocal.mechanisms import life, local_ffn

MODULES = (depthwise_module, hidden_module, mean_module, multi_scale_module, life, local_ffn)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
if INTERPRETED:  # before torch 2.15 its wrapper refuses interpreted kernels; the wrapper only serves tracing
    torch.library.wrap_triton = lambda kernel: kernel
pytestmark = pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()), reason="needs a GPU or Triton's interpreter"
)
few = settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
sides, prefixes, kernels = st.integers(1, 6), st.integers(0, 5), st.sampled_from((0, 1, 3, 5))
# Few tokens or many, and strips of a whole line or of a part: the kernels lay their work out in other ways.
layouts = st.sampled_from(((10**9, 16), (0, 16), (0, 3)))


@contextmanager
def laid_out(layout: tuple[int, int]) -> Iterator[None]:
    """Let the kernels take small inputs for large ones."""
    from glocal.kernels import convolve_triton, project_triton

    before = convolve_triton.BUSY, convolve_triton.STRIP, project_triton.MANY
    convolve_triton.BUSY, convolve_triton.STRIP = layout
    project_triton.MANY = layout[0]
    try:
        yield
    finally:
        convolve_triton.BUSY, convolve_triton.STRIP, project_triton.MANY = before


def agree(fast: Callable[..., Tensor], plain: Callable[..., Tensor], leaves: Sequence[Tensor]) -> None:
    """Compare outputs and all gradients; the plain side works in float64."""
    mine = [each.detach().to(DEVICE).requires_grad_() for each in leaves]
    true = [each.detach().double().requires_grad_() for each in leaves]
    out, reference = fast(*mine), plain(*true)
    grad = torch.randn(reference.shape)
    out.backward(grad.to(DEVICE))
    reference.backward(grad.double())
    pairs = [(out, reference), *((a.grad, b.grad) for a, b in zip(mine, true, strict=True))]
    for here, there in pairs:
        assert here is not None and there is not None
        torch.testing.assert_close(here.double().cpu(), there, rtol=2e-5, atol=2e-5 * float(there.abs().max() + 1))


@few
@given(
    height=sides,
    width=sides,
    prefix=prefixes,
    sizes=st.lists(kernels, min_size=1, max_size=3),
    gap=st.booleans(),
    layout=layouts,
)
def test_depthwise_groups_equal_convolutions_of_the_patch_map(
    height: int, width: int, prefix: int, sizes: list[int], gap: bool, layout: tuple[int, int]
) -> None:
    from glocal.kernels.depthwise_triton import depthwise_tokens

    lattice, parts = Lattice(height, width, prefix), 3 if len(sizes) > 1 else 1
    widths = tuple(range(5, 5 + len(sizes)))
    tokens = torch.randn(2, len(lattice) + 2, parts * sum(widths) + 3)
    tokens = tokens[:, 1:-1, 2:-1] if gap else tokens[:, :-2, :-3].contiguous()  # a gap: not contiguous
    weights = [torch.randn(parts * w, 1, k, k) for w, k in zip(widths, sizes, strict=True) if k]

    def spread(given: Sequence[Tensor], nothing: Tensor | None) -> list[Tensor | None]:
        rest = iter(given)
        return [next(rest) if k else nothing for k in sizes]

    with laid_out(layout):
        agree(
            lambda x, *w: depthwise_tokens(x, spread(w, x.new_empty(0)), list(widths), parts, height, width, prefix),
            lambda x, *w: depthwise_reference(x, spread(w, None), widths, parts, lattice),
            [tokens, *weights],
        )


@few
@given(
    height=sides,
    width=sides,
    prefix=prefixes,
    sizes=st.lists(kernels, min_size=1, max_size=3),
    biased=st.booleans(),
    layout=layouts,
)
def test_the_chain_of_scales_equals_its_plain_form(
    height: int, width: int, prefix: int, sizes: list[int], biased: bool, layout: tuple[int, int]
) -> None:
    from glocal.kernels.multi_scale_triton import multi_scale_tokens

    lattice, widths = Lattice(height, width, prefix), tuple(range(3, 3 + len(sizes)))
    inputs = (11, *(3 * w for w in widths[:-1]))
    taps = [torch.randn(c, 1, k, k) / k for c, k in zip(inputs, sizes, strict=True) if k]
    mixes = [torch.randn(3 * w, c) / c**0.5 for c, w in zip(inputs, widths, strict=True)]
    bias = [torch.randn(3 * widths[0])] if biased else []

    def sorted_out(
        given: Sequence[Tensor], nothing: Tensor | None
    ) -> tuple[list[Tensor | None], list[Tensor], Tensor | None]:
        rest = iter(given)
        convolved = [next(rest) if k else nothing for k in sizes]
        return convolved, [next(rest) for _ in sizes], next(rest, None)

    def fast(x: Tensor, *rest: Tensor) -> Tensor:
        return multi_scale_tokens(x, *sorted_out(rest, x.new_empty(0)), height, width, prefix, True)[0]

    def plain(x: Tensor, *rest: Tensor) -> Tensor:
        return torch.cat(multi_scale_reference(x, *sorted_out(rest, None), lattice), dim=-1).flatten(2)

    with laid_out(layout):
        agree(fast, plain, [torch.randn(2, len(lattice), 11), *taps, *mixes, *bias])
        leaves = [torch.randn(2, len(lattice), 11), *taps, *mixes, *bias]
        here = [each.to(DEVICE) for each in leaves]
        # Nothing is kept for a backward pass then.
        found = multi_scale_tokens(here[0], *sorted_out(here[1:], here[0].new_empty(0)), height, width, prefix, False)
        wanted = plain(*(each.double() for each in leaves))
        torch.testing.assert_close(
            found[0].double().cpu(), wanted, rtol=2e-5, atol=2e-5 * float(wanted.abs().max() + 1)
        )


@few
@given(
    height=st.integers(3, 7),
    width=st.integers(3, 7),
    shape=st.sampled_from(((2, 2, 0), (3, 2, 1))),
    far=st.sampled_from((0.0, 0.4, 3.0)),
)
def test_gathered_taps_equal_their_plain_form(height: int, width: int, shape: tuple[int, int, int], far: float) -> None:
    from glocal.kernels.deform_triton import gather_taps

    kernel, stride, padding = shape
    out_height, out_width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
    offset = torch.randn(2, 2 * kernel * kernel, out_height, out_width) * far  # 0: where training starts
    agree(
        lambda x, o: gather_taps(x, o, kernel, stride, padding),
        lambda x, o: sample_taps_reference(
            x.permute(0, 3, 1, 2), o, kernel=kernel, stride=stride, padding=padding
        ).permute(0, 3, 4, 2, 1),
        [torch.randn(2, height, width, 70), offset],
    )


@few
@given(
    height=sides,
    width=sides,
    prefix=prefixes,
    kernel=st.sampled_from((3, 5)),
    acts=st.sampled_from(((1, 1), (3, 2), (0, 3))),
    layout=layouts,
)
def test_hidden_tokens_and_their_mean_equal_the_plain_form(
    height: int, width: int, prefix: int, kernel: int, acts: tuple[int, int], layout: tuple[int, int]
) -> None:
    from glocal.kernels.hidden_triton import hidden_tokens

    lattice, kinds = Lattice(height, width, prefix), (nn.Identity(), nn.Hardswish(), nn.ReLU6(), nn.GELU())
    tokens, weight, bias = torch.randn(2, len(lattice), 9), torch.randn(9, 1, kernel, kernel), torch.randn(9)
    here = [each.to(DEVICE) for each in (tokens, weight, bias)]
    with laid_out(layout):
        found = hidden_tokens(*here, height, width, prefix, *acts, True)
    doubles = [each.double() for each in (tokens, weight, bias)]
    wanted = hidden_reference(*doubles, kinds[acts[0]], kinds[acts[1]], lattice)
    for mine, true in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.double().cpu(), true, rtol=2e-5, atol=2e-5 * float(true.abs().max() + 1))


@few
@given(
    height=st.integers(2, 6),
    width=sides,
    prefix=prefixes,
    kernel=st.sampled_from((3, 5)),
    act=st.integers(1, 3),
    gated=st.booleans(),
    layout=layouts,
    summed=st.sampled_from((256, 7)),
)
def test_normalised_hidden_tokens_equal_the_plain_form(
    height: int, width: int, prefix: int, kernel: int, act: int, gated: bool, layout: tuple[int, int], summed: int
) -> None:
    from glocal.kernels import rows_triton
    from glocal.kernels.batch_hidden_triton import batch_hidden_tokens

    lattice, dim, eps = Lattice(height, width, prefix), 9, [1e-5, 1e-3]
    kinds = (nn.Identity(), nn.Hardswish(), nn.ReLU6(), nn.GELU())
    norms = [torch.rand(dim) + 0.5, torch.randn(dim), torch.rand(dim) + 0.5, torch.randn(dim)]
    squeeze = [torch.randn(3, dim), torch.randn(3), torch.randn(dim, 3), torch.randn(dim)] if gated else []
    tokens, taps = torch.randn(3, len(lattice), dim) + 2, torch.randn(dim, 1, kernel, kernel)

    def fast(x: Tensor, taps: Tensor, *rest: Tensor) -> Tensor:
        sizes = (height, width, prefix, act)
        return batch_hidden_tokens(x, list(rest[:2]), taps, list(rest[2:4]), eps, list(rest[4:]), *sizes)[0]

    def plain(x: Tensor, taps: Tensor, *rest: Tensor) -> Tensor:
        return batch_hidden_reference(x, rest[:2], taps, rest[2:4], eps, rest[4:], kinds[act], lattice)

    with laid_out(layout), pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_triton, "SUMMED", summed)
        agree(fast, plain, [tokens, taps, *norms, *squeeze])


@pytest.mark.parametrize("act", [1, 2, 3])
def test_what_is_not_a_number_stays_so(act: int) -> None:
    from glocal.kernels.hidden_triton import hidden_tokens

    tokens = torch.ones(1, 4, 16, device=DEVICE)
    tokens[0, 1, 3] = float("nan")
    taps = torch.zeros(16, 1, 3, 3, device=DEVICE)
    taps[:, :, 1, 1] = 1
    out, _ = hidden_tokens(tokens, taps, None, 2, 2, 0, act, act, False)
    assert out[0].isnan().all(0).nonzero().tolist() == [[3]]  # its neighbours too: nothing times it is not a number
    assert out[0].isfinite().all(0).sum() == 15


@few
@given(tokens=st.integers(1, 150), dim=st.integers(1, 70), gap=st.booleans())
def test_the_mean_token_equals_the_mean(tokens: int, dim: int, gap: bool) -> None:
    from glocal.kernels.mean_triton import mean_tokens

    given = torch.randn(2, tokens + 1, dim)
    given = given[:, 1:] if gap else given
    agree(mean_tokens, lambda x: x.mean(1), [given])


@pytest.mark.parametrize("family", ["tokens", "batch", "deform"])
def test_the_kernels_pass_their_own_trial(family) -> None:
    from glocal.kernels.trial import ALLOWED, deviations

    found = dict(deviations(family, torch.device(DEVICE), torch.float32, images=2, dim=18, side=4))
    assert len(found) == {"tokens": 10, "batch": 15, "deform": 3}[family]
    assert all(error < 1e-5 < ALLOWED[family] for error in found.values()), found


@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    "variant", ["life", "life(kernels=[1,7])", "local-ffn", "local-ffn!", "local-ffn(gate=eca)!", "cb+cbs@0", "life^"]
)
def test_whole_models_give_the_numbers_of_plain_ones(variant: str, kind: torch.dtype, monkeypatch) -> None:
    """`!` folds, `^` preserves: every way by which a mechanism hands tokens to a kernel."""
    torch.manual_seed(0)
    host = timm.create_model(
        "vit_tiny_patch16_224", img_size=(12, 16), patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=5
    )
    model = glocal.enhance(host, *glocal.named(variant.rstrip("!^")), preserve="^" in variant).eval()
    model = (glocal.fold(model) if "!" in variant else model).to(DEVICE)
    for parameter in model.parameters():
        parameter.data += 0.02 * torch.randn(parameter.shape).to(parameter)
    images = torch.randn(2, 3, 12, 16).to(DEVICE)
    launched = []
    for module in MODULES:
        monkeypatch.setattr(module, "pays", lambda tokens, *_: launched.append(1) or tokens.ndim >= 3)
    for module in (life, local_ffn):  # as on a GPU: the interpreter works on a processor
        monkeypatch.setattr(module, "overwrites", lambda tokens: False)
    with torch.no_grad():
        found = copy.deepcopy(model).to(kind)(images.to(kind)).float()
    monkeypatch.undo()
    with torch.no_grad():
        wanted = model(images)
    assert bool(launched) == (kind is torch.float16 or "cb" not in variant)  # float32 has no kernel for the mean
    torch.testing.assert_close(
        found, wanted, rtol=0, atol=(1e-5 if kind is torch.float32 else 1e-2) * wanted.abs().max()
    )


@pytest.mark.parametrize("variant", ["local-ffn", "local-ffn(gate=none)", "local-ffn(gate=eca)", "life+local-ffn+cb"])
def test_a_training_step_gives_the_gradients_and_statistics_of_a_plain_one(variant: str, monkeypatch) -> None:
    torch.manual_seed(0)
    host = timm.create_model(
        "vit_tiny_patch16_224", img_size=(12, 16), patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=5
    )
    plain = glocal.enhance(host, *glocal.named(variant)).train().to(DEVICE)
    for parameter in plain.parameters():
        parameter.data += 0.02 * torch.randn(parameter.shape).to(parameter)
    model, images = copy.deepcopy(plain), torch.randn(3, 3, 12, 16).to(DEVICE)
    plain(images).square().mean().backward()
    launched = []
    for module in (batch_hidden_module, multi_scale_module, life):
        monkeypatch.setattr(module, "pays", lambda tokens, *_: launched.append(1) or tokens.ndim >= 3)
    model(images).square().mean().backward()
    assert bool(launched) == ("eca" not in variant)  # whose gate is left to its modules
    wanted = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        there = wanted[name].grad
        assert parameter.grad is not None and there is not None
        torch.testing.assert_close(parameter.grad, there, rtol=1e-3, atol=5e-5 * float(there.abs().max() + 1e-2))
    kept = dict(plain.named_buffers())
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(buffer, kept[name], rtol=1e-5, atol=1e-5)
