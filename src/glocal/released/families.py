"""How each family of released models names and shapes the tensors that are ours under other names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Turn:
    """A tensor the release shapes otherwise: `there` turns ours into theirs, `back` theirs before it is reshaped."""

    ours: str
    there: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor] = lambda tensor: tensor


@dataclass(frozen=True)
class Family:
    """Rules from our names to released ones, applied in order; patterns are regular expressions."""

    marks: tuple[str, ...] = ()
    """Released names to recognise the family by, before the releases in it are told apart."""
    own: str = ""
    """The name of ours that does the same for checkpoints with our names, which are timm's for plain hosts."""
    rules: tuple[tuple[str, str], ...] = ()
    turns: tuple[Turn, ...] = ()
    zeroed: str | None = None
    """Tensors that the released code keeps and never uses, but ours does: zero makes the functions the same."""

    def name(self, ours: str) -> str:
        """Give the released name of one of our tensors."""
        for pattern, replacement in self.rules:
            ours = re.sub(pattern, replacement, ours)
        return ours

    def turn(self, ours: str) -> Turn | None:
        """Give the turn that one of our tensors takes, if any."""
        return next((each for each in self.turns if re.search(each.ours, ours)), None)


_SWIN = (  # the releases merge tokens at the end of a stage, timm at the beginning of the next
    *((rf"^layers\.{i}\.downsample\.", f"layers.{i - 1}.downsample.") for i in (1, 2, 3)),
    (r"^head\.fc\.", "head."),
)
_LIFE = (
    (r"\.qkv\.inner\.pointwise\.0\.", ".qkv.scale1."),
    *((rf"\.qkv\.inner\.(depthwise|pointwise)\.{i}\.", rf".qkv.scale{i + 1}.\1.") for i in (1, 2)),
)
_LIFE_TURNS = (Turn(r"\.pointwise\.[12]\.weight$", lambda weight: weight[:, :, None, None]),)
_LOCAL_START = (
    (r"\.mlp\.inner\.fc1\.", ".conv.conv.0."),
    (r"\.mlp\.inner\.norm1\.", ".conv.conv.1."),
    (r"\.mlp\.inner\.dw\.", ".conv.conv.3."),
    (r"\.mlp\.inner\.norm2\.", ".conv.conv.4."),
)
_LOCAL_BARE = (*_LOCAL_START, (r"\.mlp\.inner\.fc2\.", ".conv.conv.6."), (r"\.mlp\.inner\.norm3\.", ".conv.conv.7."))
_LOCAL_SE = (
    *_LOCAL_START,
    (r"\.mlp\.inner\.gate\.fc1\.", ".conv.conv.6.fc.0."),
    (r"\.mlp\.inner\.gate\.fc2\.", ".conv.conv.6.fc.2."),
    (r"\.mlp\.inner\.fc2\.", ".conv.conv.7."),
    (r"\.mlp\.inner\.norm3\.", ".conv.conv.8."),
)
_LOCAL_TURNS = (Turn(r"\.gate\.fc[12]\.weight$", lambda weight: weight[:, :, 0, 0]),)
_PVT = (
    *((rf"^stages\.{s}\.blocks\.", f"block{s + 1}.") for s in range(4)),
    *((rf"^stages\.{s}\.merge\.", f"patch_embed{s + 1}.") for s in range(4)),
    *((rf"^stages\.{s}\.pos_embed$", f"pos_embed{s + 1}") for s in range(4)),
    (r"^stages\.3\.cls_token$", "cls_token"),
)
_LIT = (  # stages like Swin's: the first merge is the patch embedding, the others end the stage before
    (r"^stages\.0\.merge\.", "patch_embed."),
    *((rf"^stages\.{s}\.merge\.", f"layers.{s - 1}.downsample.") for s in (1, 2, 3)),
    (r"^stages\.", "layers."),
)
_DTM = (
    (r"(patch_embed[234]|downsample)\.conv\.offset\.", r"\1.dconv.conv_offset."),
    (r"(patch_embed[234]|downsample)\.conv\.", r"\1.dconv."),
    (r"(patch_embed[234]|downsample)\.norm\.", r"\1.norm_layer."),
)
_TNT = (
    (r"^patch_pos$", "outer_pos"),
    (r"^pixel_pos$", "inner_pos"),
    (r"^pixel_embed\.", "patch_embed."),
    (r"norm([12])_proj\.", r"proj_norm\1."),
    (r"\.norm_in\.", ".inner_norm1."),
    (r"\.attn_in\.", ".inner_attn."),
    (r"\.norm_mlp_in\.", ".inner_norm2."),
    (r"\.mlp_in\.", ".inner_mlp."),
    (r"\.norm_out\.", ".outer_norm1."),
    (r"\.attn_out\.", ".outer_attn."),
    (r"\.norm_mlp\.", ".outer_norm2."),
    (r"\.mlp\.", ".outer_mlp."),
)
_T2T = (  # the Performer's step is one module there, an attention and a network here
    (r"(tokens_to_token\.attention[12])\.attn\.(w|kqv|proj)", r"\1.\2"),
    (r"(tokens_to_token\.attention[12])\.mlp\.fc1\.", r"\1.mlp.0."),
    (r"(tokens_to_token\.attention[12])\.mlp\.fc2\.", r"\1.mlp.2."),
    (r"(tokens_to_token\.attention[12])\.idle_norm\.", r"\1.norm2."),
)

PLAIN = Family(
    ("patch_embed.proj.weight", "blocks.0.mlp.fc1.weight", "pos_embed"), "blocks.0.mlp.fc1.weight"
)  # DeiT: timm's names are its own
LIFE_DEIT = Family(
    ("blocks.0.attn.qkv.scale1.weight",), "blocks.0.attn.qkv.inner.pointwise.0.weight", _LIFE, _LIFE_TURNS
)
SWIN = Family(
    ("layers.0.blocks.0.mlp.fc1.weight", "layers.0.downsample.reduction.weight"),
    "layers.1.downsample.reduction.weight",
    _SWIN,
)
LIFE_SWIN = Family(
    ("layers.0.blocks.0.attn.qkv.scale1.weight",),
    "layers.0.blocks.0.attn.qkv.inner.pointwise.0.weight",
    (*_SWIN, *_LIFE),
    _LIFE_TURNS,
    zeroed=r"\.attn\.[qv]_bias$",
)
LOCAL_DEIT = Family(
    ("blocks.0.conv.conv.7.weight", "patch_embed.proj.weight"),
    "blocks.0.mlp.inner.gate.fc1.weight",
    _LOCAL_SE,
    _LOCAL_TURNS,
)
LOCAL_DEIT_BARE = Family(
    ("blocks.0.conv.conv.7.weight", "patch_embed.proj.weight"), "blocks.0.mlp.inner.dw.weight", _LOCAL_BARE
)
LOCAL_SWIN = Family(
    ("layers.0.blocks.0.conv.conv.0.weight",),
    "layers.0.blocks.0.mlp.inner.fc1.weight",
    (*_SWIN, *_LOCAL_SE),
    _LOCAL_TURNS,
)
TNT_FIRST = Family(
    ("patch_pos", "blocks.0.mlp.fc1.weight"), "pixel_embed.proj.weight"
)  # the first public version: timm kept its names
LOCAL_TNT = Family(("patch_pos", "blocks.0.conv.conv.0.weight"), "pixel_embed.proj.weight", _LOCAL_SE, _LOCAL_TURNS)
TNT = Family(
    ("outer_pos",),
    "pixel_embed.proj.weight",
    _TNT,
    (
        Turn(
            r"^pixel_pos$",
            lambda table: table.flatten(2).transpose(1, 2),  # (1, C, H, W) -> (1, H * W, C)
            lambda table: table.transpose(1, 2),
        ),
    ),
)
PVT = Family(
    ("pos_embed4", "patch_embed2.proj.weight", "block1.0.attn.q.weight"), "stages.0.blocks.0.attn.q.weight", _PVT
)
LOCAL_PVT = Family(
    ("pos_embed4", "block1.0.conv.conv.0.weight"),
    "stages.0.blocks.0.mlp.inner.fc1.weight",
    (*_PVT, *_LOCAL_SE),
    _LOCAL_TURNS,
)
T2T = Family(
    ("tokens_to_token.attention1.kqv.weight", "blocks.0.mlp.fc1.weight"),
    "tokens_to_token.attention1.attn.kqv.weight",
    _T2T,
)
T2T_T = Family(
    ("tokens_to_token.attention1.attn.qkv.weight", "blocks.0.mlp.fc1.weight"),
    "tokens_to_token.attention1.attn.qkv.weight",
)
LOCAL_T2T = Family(
    ("tokens_to_token.attention1.kqv.weight", "blocks.0.conv.conv.0.weight"),
    "tokens_to_token.attention1.mlp.inner.fc1.weight",
    (
        *((rf"(tokens_to_token\.attention[12]){ours}", rf"\1{theirs}") for ours, theirs in _LOCAL_BARE),
        *_LOCAL_SE,
        *_T2T,
    ),
    _LOCAL_TURNS,
)
LIT_ABSOLUTE = Family(("patch_embed2.dconv.weight",), "stages.1.merge.conv.offset.weight", (*_PVT, *_DTM))
LIT_ABSOLUTE_STAR = Family(
    ("patch_embed2.proj.weight", "block3.0.attn.qkv.weight"), "stages.2.blocks.0.attn.qkv.weight", _PVT
)
LIT_RELATIVE = Family(("layers.0.downsample.dconv.weight",), "stages.1.merge.conv.offset.weight", (*_LIT, *_DTM))
LIT_RELATIVE_STAR = Family(
    ("layers.0.downsample.reduction.weight", "layers.2.blocks.0.attn.qkv.weight"),
    "stages.1.merge.reduction.weight",
    _LIT,
)
