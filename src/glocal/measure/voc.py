"""Average precision and F1 as PASCAL VOC counts them: a box is right when it covers its object by half.

Everingham et al., "The PASCAL Visual Object Classes (VOC) Challenge".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.ops import box_iou

Boxes = dict[str, Tensor]


def voc_figures(
    found: Sequence[Boxes], wanted: Sequence[Boxes], classes: int, overlap: float = 0.5
) -> dict[str, float]:
    """Give mAP and F1 in percent, averaged over the classes that occur.

    AP is the area under the precision curve made falling; a class's F1 is that of the score threshold where it is best.
    """
    curves = [_curve(found, wanted, label, overlap) for label in range(classes)]
    known = [each for each in curves if each is not None]
    if not known:
        return {"map": 0.0, "f1": 0.0}
    return {
        "map": 100 * sum(_area(*each) for each in known) / len(known),
        "f1": 100 * sum(_best_f1(*each) for each in known) / len(known),
    }


def _curve(found: Sequence[Boxes], wanted: Sequence[Boxes], label: int, overlap: float) -> tuple[Tensor, Tensor] | None:
    """Return recall and precision as ever weaker detections are taken in; None where the class does not occur."""
    scores: list[Tensor] = []
    right: list[Tensor] = []
    count = 0
    for ours, theirs in zip(found, wanted, strict=True):
        mine = ours["labels"] == label
        order = ours["scores"][mine].argsort(descending=True, stable=True)
        its = theirs["labels"] == label
        hard = theirs["hard"][its]
        count += int((~hard).sum())
        verdict = _verdicts(ours["boxes"][mine][order], theirs["boxes"][its], hard, overlap)
        counted = verdict >= 0
        scores.append(ours["scores"][mine][order][counted])
        right.append(verdict[counted])
    if not count:
        return None
    order = torch.cat(scores).argsort(descending=True, stable=True)
    hits = torch.cat(right)[order].double().cumsum(0)
    return hits / count, hits / torch.arange(1, len(hits) + 1)


def _verdicts(boxes: Tensor, objects: Tensor, hard: Tensor, overlap: float) -> Tensor:
    """Judge boxes of one image, best first: 1 right, 0 wrong, -1 not counted because its object is a hard one."""
    verdict = torch.zeros(len(boxes), dtype=torch.long)
    if not len(objects) or not len(boxes):
        return verdict
    shares, nearest = box_iou(boxes, objects).max(dim=1)
    taken: set[int] = set()
    for i, (share, thing) in enumerate(zip(shares.tolist(), nearest.tolist(), strict=True)):
        if share < overlap:
            continue
        if hard[thing]:
            verdict[i] = -1
        elif thing not in taken:
            taken.add(thing)
            verdict[i] = 1
    return verdict


def _area(recall: Tensor, precision: Tensor) -> float:
    falling = precision.flip(0).cummax(0).values.flip(0) if len(precision) else precision
    steps = torch.diff(recall, prepend=recall.new_zeros(1))
    return float((steps * falling).sum())


def _best_f1(recall: Tensor, precision: Tensor) -> float:
    if not len(recall):
        return 0.0
    return float((2 * recall * precision / (recall + precision).clamp(min=1e-12)).max())
