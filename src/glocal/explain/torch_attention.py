"""torch's own attention module, which gives its map when asked."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_NAMES = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")


@torch.no_grad()
def torch_attention(module: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Ask for the (B, heads, N, M) map that goes with the inputs of a call."""
    given = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    query, key, value = (given[name] for name in ("query", "key", "value"))
    if module.batch_first and query.ndim == 3:
        query, key, value = (each.transpose(0, 1) for each in (query, key, value))
    _, weights = F.multi_head_attention_forward(
        query,
        key,
        value,
        module.embed_dim,
        module.num_heads,
        module.in_proj_weight,
        module.in_proj_bias,
        module.bias_k,
        module.bias_v,
        module.add_zero_attn,
        0.0,
        module.out_proj.weight,
        module.out_proj.bias,
        training=False,
        key_padding_mask=given.get("key_padding_mask"),
        attn_mask=given.get("attn_mask"),
        need_weights=True,
        average_attn_weights=False,
        use_separate_proj_weight=not module._qkv_same_embed_dim,
        q_proj_weight=module.q_proj_weight,
        k_proj_weight=module.k_proj_weight,
        v_proj_weight=module.v_proj_weight,
    )
    assert weights is not None
    return weights if weights.ndim == 4 else weights[None]
