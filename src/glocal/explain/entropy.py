"""How dense attention is: entropy by layer and head.

Hyeon-Woo et al., "Scratching Visual Transformer's Back with Uniform Attention", section 3.1, Figures 4 and 7a.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def entropy(attention: Tensor) -> Tensor:
    """Measure each query's entropy in nats: (..., N, M) to (..., N). Uniform attention reaches log M."""
    return torch.special.entr(attention.float()).sum(dim=-1)


@dataclass(frozen=True)
class EntropyProfile:
    """Entropy by layer, first layer first; each field is a (layers,) tensor."""

    mean: Tensor
    """Over images, heads and tokens."""
    low: Tensor
    """15th percentile, as Figure 4's caption has it."""
    high: Tensor
    """85th percentile: where the top 15 % begin, of which the text speaks."""
    class_token: Tensor
    """Of the class token alone (Figure 7a); nan where there is none."""
    maximum: Tensor
    """log M for M keys: uniform attention."""


def entropy_profile(
    entropies: Sequence[Tensor],
    keys: Sequence[int],
    *,
    class_token: bool | Sequence[bool] = True,
    percentile: float = 0.15,
) -> EntropyProfile:
    """Sum up (B, heads, N) entropies of each layer."""
    has_class = [class_token] * len(entropies) if isinstance(class_token, bool) else class_token
    nothing = torch.tensor(math.nan)
    first = [each[..., 0].mean() if has else nothing for each, has in zip(entropies, has_class, strict=True)]
    return EntropyProfile(
        mean=torch.stack([each.mean() for each in entropies]).cpu(),
        low=torch.stack([_quantile(each, percentile) for each in entropies]).cpu(),
        high=torch.stack([_quantile(each, 1 - percentile) for each in entropies]).cpu(),
        class_token=torch.stack([each.cpu() for each in first]),
        maximum=torch.tensor([math.log(count) for count in keys]),
    )


def by_head(entropies: Sequence[Tensor]) -> list[Tensor]:
    """Average over images and tokens: one (heads,) tensor per layer, since stages may differ in heads."""
    return [each.mean(dim=(0, 2)).cpu() for each in entropies]


def _quantile(values: Tensor, share: float) -> Tensor:
    ranked = values.flatten().sort().values  # torch.quantile stops at 16 million values
    place = share * (ranked.numel() - 1)
    low, high = ranked[math.floor(place)], ranked[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))
