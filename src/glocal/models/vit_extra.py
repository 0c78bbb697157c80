"""An eight-layer ViT with one more attention or one more feed-forward network at its end.

Hyeon-Woo et al., "Scratching Visual Transformer's Back with Uniform Attention", Fig. 3: which of the two helps more.
"""

from __future__ import annotations

from typing import Any, Literal

from timm.layers import Mlp
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from glocal.errors import GlocalError
from glocal.models.classifier import start
from glocal.models.registry import register


class AttentionAlone(nn.Module):
    """The first half of a transformer block."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.norm1, self.attn, self.ls1, self.drop_path1 = block.norm1, block.attn, block.ls1, block.drop_path1

    def forward(self, x: Tensor, **masks: Any) -> Tensor:
        return x + self.drop_path1(self.ls1(self.attn(self.norm1(x), **masks)))


class FeedForwardAlone(nn.Module):
    """The second half of a transformer block, half as wide: then it has as many parameters as an attention."""

    def __init__(self, block: Block, dim: int, drop: float) -> None:
        super().__init__()
        self.norm2, self.ls2, self.drop_path2 = block.norm2, block.ls2, block.drop_path2
        self.mlp = Mlp(dim, 2 * dim, drop=drop).apply(start)

    def forward(self, x: Tensor, **masks: Any) -> Tensor:
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


class ExtraVisionTransformer(VisionTransformer):
    """A ViT of `depth` blocks and one half block after them: an attention ("msa") or a feed-forward network ("mlp")."""

    def __init__(
        self, *, extra: Literal["msa", "mlp"] = "msa", depth: int = 8, proj_drop_rate: float = 0.0, **arguments: Any
    ) -> None:
        if extra not in ("msa", "mlp"):
            raise GlocalError(f"the extra block is {extra!r}; use 'msa' or 'mlp'.")
        super().__init__(depth=depth + 1, proj_drop_rate=proj_drop_rate, **arguments)
        last = self.blocks[-1]
        assert isinstance(last, Block)
        alone = AttentionAlone(last) if extra == "msa" else FeedForwardAlone(last, self.embed_dim, proj_drop_rate)
        self.blocks[-1] = alone


_SIZES = {"tiny": (192, 3), "small": (384, 6), "base": (768, 12)}
SHAPES: dict[str, dict[str, Any]] = {
    f"vit_{size}_patch16_224_depth8_{extra}": {"extra": extra, "embed_dim": dim, "num_heads": heads}
    for size, (dim, heads) in _SIZES.items()
    for extra in ("msa", "mlp")
}
register(__name__, ExtraVisionTransformer, SHAPES, first_conv="patch_embed.proj", out_indices=3)
