"""Vision transformers of one stage in transformers: ViT, DeiT, DINOv2, DINOv3, BEiT, SigLIP, CLIP and their kin.

They are known by the name of the class that holds embeddings and layers, so that transformers need not be installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from glocal.errors import GlocalError
from glocal.hosts.feed_forward import bare, not_plain
from glocal.site import Handover, LatticeCell, Seam, Site
from glocal.wrappers import first_input

TRUNKS = (
    "ViTModel",
    "DeiTModel",
    "ViTMSNModel",
    "IJepaModel",
    "BeitModel",
    "Dinov2Model",
    "Dinov2Backbone",
    "Dinov2WithRegistersModel",
    "Dinov2WithRegistersBackbone",
    "DINOv3ViTModel",
    "SiglipVisionModel",
    "CLIPVisionModel",
)
_STEMS = (
    "embeddings.patch_embeddings.projection",
    "embeddings.patch_embeddings",
    "embeddings.patch_embedding",
)
_FIRST = ("layernorm_before", "norm1", "layer_norm1")
_SECOND = ("layernorm_after", "norm2", "layer_norm2")
_PREFIXES = ("cls_token", "distillation_token", "register_tokens", "class_embedding")


def trunk_of(model: nn.Module) -> tuple[str, nn.Module] | None:
    """Find the class that holds embeddings and layers, and its path: the model itself or a part of it."""
    for path, module in model.named_modules():
        if _is_trunk(module):
            return path, module
    return None


def sites(model: nn.Module) -> Iterator[Site]:
    """List what the host offers."""
    found = trunk_of(model)
    assert found is not None
    path, trunk = found[0] + "." * bool(found[0]), cast("Any", found[1])
    where, blocks = _layers(trunk)
    embeddings, dim, patch = trunk.embeddings, int(trunk.config.hidden_size), trunk.config.patch_size
    grid = partial(_grid, (patch, patch) if isinstance(patch, int) else tuple(patch))
    cell = LatticeCell(embeddings, grid, prefix=_prefix(embeddings), before=True)
    for stem in _STEMS:
        if isinstance(_part(trunk, stem), nn.Conv2d):
            yield Site(Seam.STEM, f"{path}{stem}", dim)
    if isinstance(getattr(embeddings, "position_embeddings", None), Tensor):
        zeros = embeddings.position_embeddings.detach() * 0  # the host always adds its positions
        yield Site(Seam.POSITION, f"{path}embeddings.position_embeddings", dim, absent=zeros)
    # These blocks keep their own hooks out of recomputation; their first norms see the same tokens, inside it.
    recall = tuple(norm for block in blocks for norm in _named(block, _FIRST)[:1])
    for i, block in enumerate(blocks):
        at = {"layer": i, "depth": len(blocks), "dim": dim, "cell": cell, "recall": recall}
        yield from _block(block, f"{path}{where}.{i}", at)


def _block(block: nn.Module, path: str, at: dict[str, Any]) -> Iterator[Site]:
    children = dict(block.named_children())
    name = "attention" if "attention" in children else "self_attn"
    first = tuple(each for each in (*_FIRST, "layer_scale1") if each in children)
    second = tuple(each for each in (*_SECOND, "layer_scale2") if each in children)
    attention: Any = bare(children[name])
    if hasattr(attention, "q_proj"):
        heads = int(getattr(attention, "num_attention_heads", getattr(attention, "num_heads", 0)))
        yield from _projections(attention, f"{path}.{name}", {**at, "heads": heads})
        yield Site(Seam.ATTENTION, f"{path}.{name}", **at, heads=heads, branch=first, fit=_with_map)
        out = "o_proj" if hasattr(attention, "o_proj") else "out_proj"
        yield Site(Seam.MIXED, f"{path}.{name}.{out}", **at)
    yield from _feed_forward(children["mlp"], f"{path}.mlp", at, second)


def _projections(attention: Any, path: str, at: dict[str, Any]) -> Iterator[Site]:
    three = (attention.q_proj, attention.k_proj, attention.v_proj)
    plain = next((not_plain(each) for each in three if type(each) is not nn.Linear), "")
    handover = Handover(three)
    for part, name in enumerate(("q_proj", "k_proj", "v_proj")):
        yield Site(Seam.QKV, f"{path}.{name}", **at, plain=plain, handover=handover, part=part)


def _feed_forward(network: nn.Module, path: str, at: dict[str, Any], branch: tuple[str, ...]) -> Iterator[Site]:
    module: Any = bare(network)
    act = "activation_fn" if hasattr(module, "activation_fn") else "act_fn"
    linears = [each for each in module.children() if isinstance(each, nn.Linear)]
    if len(linears) == 2 and hasattr(module, act) and linears[0].out_features == linears[1].in_features:
        hidden = linears[0].out_features
        yield Site(Seam.FFN, path, **at, hidden=hidden, branch=branch)
        yield Site(Seam.HIDDEN, f"{path}.{act}", **{**at, "dim": hidden})
    else:
        yield Site(Seam.FFN, path, **at, branch=branch, plain=not_plain(network))


class WithMap(nn.Module):
    """Answer as attention in transformers does: with the tokens and a map, of which there is none here."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        return self.inner(first_input(args, kwargs)), None


def _with_map(new: nn.Module, old: nn.Module) -> nn.Module:
    return WithMap(new)


def _is_trunk(module: nn.Module) -> bool:
    kinds = type(module).__mro__
    return any(kind.__name__ in TRUNKS and kind.__module__.startswith("transformers.") for kind in kinds)


def _layers(trunk: nn.Module) -> tuple[str, list[nn.Module]]:
    for path in ("layers", "encoder.layer", "encoder.layers", "model.layer"):
        blocks = list(cast("nn.Module", _part(trunk, path) or nn.Module()).children())
        if (
            blocks
            and hasattr(blocks[0], "mlp")
            and (hasattr(blocks[0], "attention") or hasattr(blocks[0], "self_attn"))
        ):
            return path, blocks
    raise GlocalError(
        f"{type(trunk).__name__} is laid out in a way that glocal does not know. It knows that of transformers 5: "
        f"pip install --upgrade transformers."
    )


def _named(block: nn.Module, names: tuple[str, ...]) -> list[nn.Module]:
    return [child for name, child in block.named_children() if name in names]


def _part(trunk: nn.Module, path: str) -> nn.Module | None:
    try:
        return trunk.get_submodule(path)
    except AttributeError:
        return None


def _prefix(embeddings: Any) -> int:
    """Count the tokens before the patches: class, distillation and register tokens."""
    found = [getattr(embeddings, name, None) for name in _PREFIXES]
    return sum(1 if each.ndim == 1 else each.shape[1] for each in found if isinstance(each, Tensor))


def _grid(patch: tuple[int, int], embeddings: nn.Module, args: tuple[Any, ...], output: Any) -> tuple[int, int]:
    height, width = args[0].shape[-2:]
    return height // patch[0], width // patch[1]
