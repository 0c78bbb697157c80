"""LocalViT: a depth-wise convolution in the feed-forward network.

Li et al., "LocalViT: Bringing Locality to Vision Transformers".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from timm.layers import EcaModule, SqueezeExcite
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_conv_bn_weights

from glocal.errors import GlocalError
from glocal.kernels.batch_hidden import batch_hidden, batch_hidden_takes, batch_norm
from glocal.kernels.depthwise import depthwise, lay_taps
from glocal.kernels.dispatch import bare, overwrites, pays
from glocal.kernels.hidden import hidden, hidden_takes
from glocal.kernels.product import product
from glocal.lattice import Lattice
from glocal.site import Layers, Seam, Site, chosen
from glocal.wrappers import After, OnLattice


class LocalFeedForward(nn.Module):
    """An inverted residual in place of the feed-forward network (Eq. 6-9, Fig. 3c); the host adds its input back.

    Patch tokens pass 1x1, depth-wise and 1x1 convolutions, each with BatchNorm; prefix tokens bypass it, so their
    part of the branch is zero. `gate` works on the hidden map after the second activation.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        act: type[nn.Module] = nn.Hardswish,
        kernel: int = 3,
        gate: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(dim, hidden, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(hidden)
        self.act1 = act()
        # kernel 0: the paper's rows without the depth-wise convolution (Table 1).
        self.dw = nn.Conv2d(hidden, hidden, kernel, padding=kernel // 2, groups=hidden, bias=False) if kernel else None
        self.norm2 = nn.BatchNorm2d(hidden) if kernel else None
        self.act2 = act() if kernel else None
        self.gate = gate
        self.fc2 = nn.Conv2d(hidden, dim, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(dim)

    def forward(self, tokens: Tensor, lattice: Lattice) -> Tensor:
        if self._fusable(tokens):
            return self._fused(tokens, lattice)
        if self._batch_fusable(tokens, lattice):
            return self._batch_fused(tokens, lattice)
        aux, x = lattice.split(tokens)
        merge = self._mergeable(tokens)
        x = _activated(self.act1, _normed(self.fc1, self.norm1, x, merge), merge)
        if self.dw is not None and self.norm2 is not None and self.act2 is not None:
            x = _activated(self.act2, _normed(self.dw, self.norm2, x, merge), merge)
        if self.gate is not None:
            # Once folded, nobody needs what enters the gate, and fresh memory costs as much as the work. Before that,
            # a hook may have kept it.
            x = _gated(self.gate, x, own=merge or isinstance(self.norm1, nn.Identity))
        return lattice.join(torch.zeros_like(aux), _normed(self.fc2, self.norm3, x, merge))

    def _mergeable(self, tokens: Tensor) -> bool:
        """Tell whether norms may go into their convolutions on the way: at inference on a processor.

        One pass over the weights takes the place of one over the map, which goes into fresh memory.
        """
        hidden = tokens.shape[0] * tokens.shape[1] * self.fc1.out_channels
        if self.training or hidden < LARGE or tokens.dtype is not self.fc1.weight.dtype or not overwrites(tokens):
            return False
        parts = [each for each in self._modules.values() if each is not None]
        norms = [each for each in parts if type(each) is nn.BatchNorm2d and not each.training and each.affine]
        convs = [each for each in parts if type(each) is nn.Conv2d]
        still = len(norms) == len(convs) and all(each.running_mean is not None for each in norms)
        return still and tokens.dtype in _EXACT and not torch.is_autocast_enabled("cpu") and bare(*parts)

    def _fusable(self, tokens: Tensor) -> bool:
        """Tell whether one kernel can do the middle: folded, at inference, with a gate that needs a mean at most."""
        if self.dw is None or self.act2 is None or (torch.is_grad_enabled() and tokens.requires_grad):
            return False
        # In this order: on a processor each question costs as much as some of the work.
        if not isinstance(self.norm1, nn.Identity) or not hidden_takes(tokens, self.dw, self.act1, self.act2):
            return False
        folded = isinstance(self.norm2, nn.Identity) and isinstance(self.norm3, nn.Identity)
        known = self.gate is None or _is_plain_se(self.gate)
        return folded and known and bare(*self.modules())

    def _fused(self, tokens: Tensor, lattice: Lattice) -> Tensor:
        assert self.dw is not None and self.act2 is not None
        x = _rows(self.fc1, tokens)  # prefix tokens too: it spares a copy
        x, mean = hidden(x, self.dw, self.act1, self.act2, lattice, pool=self.gate is not None)
        if self.gate is not None:
            x = x * _factor(self.gate, mean)[:, None]
        x = _rows(self.fc2, x)
        return torch.cat((torch.zeros_like(x[:, : lattice.prefix]), x[:, lattice.prefix :]), dim=1)

    def _batch_fusable(self, tokens: Tensor, lattice: Lattice) -> bool:
        """Tell whether kernels can do the middle in training, norms and gate included."""
        norm = self.norm2
        if self.dw is None or self.act2 is None or type(norm) is not nn.BatchNorm2d or not norm.training:
            return False
        if tokens.shape[0] * lattice.height * lattice.width < 2:  # too few for a variance: BatchNorm says so
            return False
        gate = cast("Any", self.gate)
        # Any other activation or gate inside SE would need a slope of its own.
        known = gate is None or (
            _is_plain_se(gate)
            and type(gate.act) is nn.ReLU
            and type(gate.gate) is nn.Hardsigmoid
            and None not in (gate.fc1.bias, gate.fc2.bias)
        )
        norms, acts = (self.norm1, norm, self.norm3), (self.act1, self.act2)
        return known and batch_hidden_takes(tokens, self.dw, norms, acts) and bare(*self.modules())

    def _batch_fused(self, tokens: Tensor, lattice: Lattice) -> Tensor:
        assert self.dw is not None and self.norm2 is not None
        squeeze: list[Tensor] = []
        if self.gate is not None:
            for conv in cast("tuple[nn.Conv2d, ...]", (self.gate.fc1, self.gate.fc2)):
                squeeze += [conv.weight.flatten(1), cast("Tensor", conv.bias)]
        x = _rows(self.fc1, tokens)  # prefix tokens too: it spares a copy
        x = batch_hidden(x, (self.norm1, self.norm2), self.dw, self.act1, squeeze, lattice)
        return batch_norm(_rows(self.fc2, x), self.norm3, lattice)

    def fold(self) -> None:
        """Merge each BatchNorm into the convolution before it, and lay its taps as the kernel reads them."""
        for conv, norm in (("fc1", "norm1"), ("dw", "norm2"), ("fc2", "norm3")):
            if isinstance(getattr(self, norm), nn.BatchNorm2d):
                setattr(self, conv, fuse_conv_bn_eval(getattr(self, conv), getattr(self, norm)))
                setattr(self, norm, nn.Identity())
        for act in (self.act1, self.act2):  # at inference nobody needs what enters it, and memory is half of its time
            if isinstance(act, (nn.Hardswish, nn.ReLU6)):
                act.inplace = True
        if self.dw is not None:
            lay_taps(self.dw.weight)


class ResidualConv(nn.Module):
    """Add a depth-wise convolution of the hidden patch tokens to them; starts at zero, so nothing changes at first."""

    def __init__(self, hidden: int, kernel: int = 3, gate: nn.Module | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden, 1, kernel, kernel))
        self.gate = gate
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    init_weights = reset_parameters  # timm's hook: a host's own initialisation keeps the zero start

    def fold(self) -> None:
        """Lay the taps as the kernel reads them."""
        lay_taps(self.weight)

    def forward(self, tokens: Tensor, lattice: Lattice) -> Tensor:
        aux, x = lattice.split(tokens)
        local = lattice.split(depthwise(tokens, self.weight, lattice))[1]
        return lattice.join(aux, x + (local if self.gate is None else self.gate(local)))


def _normed(conv: nn.Conv2d, norm: nn.Module, patch_map: Tensor, merge: bool) -> Tensor:
    """Convolve a channels-last map and normalise it; if the norm stands still, in one go."""
    if not merge:
        return norm(_pointwise(conv, patch_map) if conv.groups == 1 else _depthwise(conv, patch_map))
    still = cast("Any", norm)
    lines = (still.running_mean, still.running_var, still.eps, still.weight, still.bias)
    weight, bias = fuse_conv_bn_weights(conv.weight, conv.bias, *lines)
    if conv.groups == 1:
        return _mixed(weight, bias, patch_map)
    return F.conv2d(patch_map, weight, bias, padding=conv.kernel_size[0] // 2, groups=conv.groups)


def _activated(act: nn.Module, x: Tensor, own: bool) -> Tensor:
    """Activate a map, in its own memory where nobody else has it."""
    if own and type(act) is nn.Hardswish:
        return F.hardswish(x, inplace=True)
    return F.relu6(x, inplace=True) if own and type(act) is nn.ReLU6 else act(x)


def _gated(gate: nn.Module, x: Tensor, *, own: bool) -> Tensor:
    """Weigh the channels of a map; SE as matrix products where no slopes are asked for."""
    if not _is_plain_se(gate) or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return gate(x)
    rows = x.permute(0, 2, 3, 1)
    factor = _factor(gate, rows.mean((1, 2)))[:, None, None]
    rows = rows.mul_(factor) if own else rows * factor
    return rows.permute(0, 3, 1, 2)


def _depthwise(conv: nn.Conv2d, patch_map: Tensor) -> Tensor:
    """Convolve a channels-last map, by the kernel where that pays."""
    if not pays(patch_map) or conv.bias is not None:
        return conv(patch_map)
    height, width = patch_map.shape[2:]
    rows = depthwise(patch_map.permute(0, 2, 3, 1).flatten(1, 2), conv.weight, Lattice(height, width))
    return rows.unflatten(1, (height, width)).permute(0, 3, 1, 2)


def _pointwise(conv: nn.Conv2d, patch_map: Tensor) -> Tensor:
    """Do a 1x1 convolution as the matrix product it is, on channels-last maps without a copy."""
    return _mixed(conv.weight, conv.bias, patch_map) if bare(conv) else conv(patch_map)


def _mixed(weight: Tensor, bias: Tensor | None, patch_map: Tensor) -> Tensor:
    x = patch_map.permute(0, 2, 3, 1)  # (B, H, W, C)
    # One matrix of all tokens: given four dimensions with a gap for prefix tokens, linear() multiplies row by row.
    rows = product(x.reshape(-1, x.shape[-1]), weight.flatten(1), bias)
    return rows.view(*x.shape[:3], -1).permute(0, 3, 1, 2)


def _is_plain_se(gate: nn.Module) -> bool:
    if type(gate) is not SqueezeExcite or gate.add_maxpool or not isinstance(gate.bn, nn.Identity):
        return False
    return bare(gate, *gate.children())  # modules() would take as long as SE's products


def _factor(gate: nn.Module, mean: Tensor) -> Tensor:
    """Give SE's factor for each channel from the channels' means, (B, C): matrix products, no convolutions."""
    se = cast("Any", gate)
    return se.gate(_rows(se.fc2, se.act(_rows(se.fc1, mean))))


def _rows(conv: nn.Conv2d, rows: Tensor) -> Tensor:
    return product(rows, conv.weight.flatten(1), conv.bias)


LARGE = 100_000  # elements of a hidden map; merging takes longer than the norms of a smaller one
_EXACT = (torch.float32, torch.float64)
_ACTIVATIONS: dict[str, type[nn.Module]] = {"hswish": nn.Hardswish, "relu6": nn.ReLU6, "gelu": nn.GELU}


@dataclass(frozen=True)
class LocalFFN:
    """Graft `LocalFeedForward` in place of the feed-forward network, its norm and its drop path (§4.1)."""

    kernel: int = 3
    """Side of the depth-wise convolution; odd."""
    gate: Literal["se", "eca", "none"] = "se"
    """Channel attention after the second activation."""
    reduction: int | None = None
    """How many times narrower SE is than the hidden map; by default it keeps 4 channels, as in the paper."""
    activation: Literal["hswish", "relu6", "gelu"] = "hswish"
    expansion: float | None = None
    """Hidden width as a multiple of the token width; by default the host's own."""
    depthwise: bool = True
    """Whether the depth-wise convolution is there at all (Table 1 has rows without it)."""
    at: Literal["blocks", "tokeniser"] = "blocks"
    """The blocks, or the steps that make tokens where a host has such (T2T; LocalViT has no gate there)."""
    layers: Layers | None = None

    silences = True  # no norm before it and no drop path after it (§4.1)

    def __post_init__(self) -> None:
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise GlocalError(f"LocalFFN's kernel is {self.kernel}; it must be odd, such as 3 or 5.")
        if self.gate not in ("se", "eca", "none"):
            raise GlocalError(f"LocalFFN's gate is {self.gate!r}; use 'se', 'eca' or 'none'.")
        if self.activation not in _ACTIVATIONS:
            raise GlocalError(
                f"LocalFFN's activation is {self.activation!r}; use {', '.join(map(repr, _ACTIVATIONS))}."
            )
        if self.at not in ("blocks", "tokeniser"):
            raise GlocalError(f"LocalFFN's at is {self.at!r}; use 'blocks' or 'tokeniser'.")
        if self.expansion is not None and self.expansion <= 0:
            raise GlocalError(f"LocalFFN's expansion is {self.expansion}; it must be above 0, such as 4.")

    def seams(self, preserve: bool) -> tuple[Seam, ...]:
        if self.at == "tokeniser":
            return (Seam.TOKENISER,)
        return (Seam.HIDDEN,) if preserve else (Seam.FFN,)

    def takes(self, site: Site) -> bool:
        return chosen(site, self.layers)

    def replaces(self, preserve: bool) -> bool:
        return not preserve

    def graft(self, site: Site, old: nn.Module, *, preserve: bool) -> nn.Module:
        assert site.cell is not None
        if preserve:
            return self._beside(site, old)
        hidden = site.hidden if self.expansion is None else round(self.expansion * site.dim)
        assert hidden is not None
        new = LocalFeedForward(
            site.dim,
            hidden,
            act=_ACTIVATIONS[self.activation],
            kernel=self.kernel if self.depthwise else 0,
            gate=self._gate(hidden),
        )
        _start_from(new, old)
        return OnLattice(new, site.cell)

    def _beside(self, site: Site, old: nn.Module) -> nn.Module:
        assert site.cell is not None
        width = site.dim if site.hidden is None else site.hidden
        new = OnLattice(ResidualConv(width, self.kernel, self._gate(width)), site.cell)
        if site.seam is Seam.HIDDEN:
            return After(old, new)
        old.set_submodule("act", After(old.get_submodule("act"), new))  # a tokeniser's step offers no HIDDEN
        return old

    def _gate(self, hidden: int) -> nn.Module | None:
        if self.gate == "se":
            reduced = 4 if self.reduction is None else max(1, hidden // self.reduction)
            return SqueezeExcite(hidden, rd_channels=reduced, gate_layer=nn.Hardsigmoid)
        return EcaModule(hidden) if self.gate == "eca" else None


@torch.no_grad()
def _start_from(new: LocalFeedForward, old: nn.Module) -> None:
    """Keep the host's two linear layers where their shapes fit; BatchNorm takes the place of their biases."""
    linears = [each for each in old.modules() if isinstance(each, nn.Linear)]
    if len(linears) == 2 and linears[0].weight.shape == new.fc1.weight.shape[:2]:
        new.fc1.weight.copy_(linears[0].weight[:, :, None, None])
        new.fc2.weight.copy_(linears[1].weight[:, :, None, None])
