"""What is measured over many images, a number or a small map per layer: entropy, distance, one place's looks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from glocal.explain import keep
from glocal.explain.entropy import EntropyProfile, entropy_profile
from glocal.explain.look import Look
from glocal.explain.methods import Place, looked_from
from glocal.explain.subject import Subject
from glocal.explain.watch import watch


def query_maps(subject: Subject, images: Sequence[Tensor], place: Place) -> dict[int, Tensor]:
    """Average over images what one place looks at: (heads, H, W) by layer, after LIT's Figure 3."""
    total: dict[int, Tensor] = {}

    def add(look: Look) -> None:
        if look.group == "self" and look.keys is not None and look.queries is not None:
            total[look.layer] = total.get(look.layer, torch.zeros(())) + looked_from(look, place) / len(images)

    with torch.no_grad(), watch(subject.model, each=add):
        for image in images:
            subject.model(image)
    return dict(sorted(total.items()))


def entropies(subject: Subject, images: Sequence[Tensor]) -> EntropyProfile:
    """Measure entropy by layer over images, nan where a layer has no attention; only a number per query is kept."""
    found: dict[int, list[Tensor]] = {}
    about: dict[int, tuple[int, bool]] = {}

    def add(look: Look) -> None:
        if look.group == "self":
            found.setdefault(look.layer, []).append(look.kept)
            about[look.layer] = (look.reach, look.class_token)

    with torch.no_grad(), watch(subject.model, reduce=keep.entropy, each=add):
        for image in images:
            subject.model(image)
    layers = sorted(found)
    keys, classes = [about[i][0] for i in layers], [about[i][1] for i in layers]
    profile = entropy_profile([torch.cat(found[i]) for i in layers], keys, class_token=classes)
    return EntropyProfile(**{name: _at(layers, values) for name, values in vars(profile).items()})


def distances(subject: Subject, images: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Measure the relative distance by layer over images, averaged over pairs (CB's Figure 7b) and over tokens."""
    sums: dict[int, list[Tensor]] = {}
    others: dict[int, int] = {}

    def add(look: Look) -> None:
        if look.group == "self" and look.queries is not None and look.keys is not None:
            sums.setdefault(look.layer, []).append(look.kept[:, :, look.queries.prefix :].mean())
            others[look.layer] = len(look.keys) - look.keys.prefix - (look.queries == look.keys)

    with torch.no_grad(), watch(subject.model, reduce=keep.reach, each=add):
        for image in images:
            subject.model(image)
    layers = sorted(sums)
    tokens = torch.stack([torch.stack(sums[layer]).mean() for layer in layers])
    pairs = tokens / torch.tensor([max(1, others[layer]) for layer in layers])
    return _at(layers, pairs), _at(layers, tokens)


def _at(layers: Sequence[int], values: Tensor) -> Tensor:
    """Put values at their layers; those without attention, as LIT's early ones, are nan."""
    spread = torch.full((layers[-1] + 1,), torch.nan)
    spread[list(layers)] = values.float().cpu()
    return spread
