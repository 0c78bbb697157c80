"""What every classifier here can do: pool its tokens, classify them, and change its head, as timm's models do."""

from __future__ import annotations

from timm.layers import trunc_normal_
from timm.layers.pool1d import global_pool_nlc
from torch import Tensor, nn

from glocal.errors import GlocalError


class Classifier(nn.Module):
    """A model that ends in a LayerNorm over tokens and a linear head; `forward_features` is left to it."""

    def __init__(
        self, dim: int, prefix: int, *, num_classes: int, global_pool: str, eps: float, drop_rate: float
    ) -> None:
        super().__init__()
        self.num_features = self.head_hidden_size = self.embed_dim = dim
        self.num_prefix_tokens = prefix
        self.norm = nn.LayerNorm(dim, eps=eps)
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes, global_pool)

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the last tokens, normalised."""
        raise NotImplementedError

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool the tokens and classify them."""
        x = self.head_drop(global_pool_nlc(x, self.global_pool, num_prefix_tokens=self.num_prefix_tokens))
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def get_classifier(self) -> nn.Module:
        """Return the head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the head; 0 classes leave none."""
        pool = self.global_pool if global_pool is None else global_pool
        if pool not in ("", "avg", "token") or (pool == "token" and not self.num_prefix_tokens):
            choices = "'token', 'avg' or ''" if self.num_prefix_tokens else "'avg' or '' (it has no class token)"
            raise GlocalError(f"{type(self).__name__} cannot pool by {pool!r}; use {choices}.")
        self.global_pool, self.num_classes = pool, num_classes
        self.head = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        like = next(self.norm.parameters(), None)
        if like is not None:
            self.head.to(like.device, like.dtype)
        self.head.apply(start).train(self.training)


def start(module: nn.Module) -> None:
    """Start linear layers as the authors do; convolutions and norms keep the framework's start."""
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
