"""DETR's set loss: match queries to objects one to one, then compare class and box of each pair.

Carion et al., "End-to-End Object Detection with Transformers".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import box_convert, generalized_box_iou

from glocal.errors import GlocalError

Pairs = list[tuple[Tensor, Tensor]]  # for each image: queries, and the objects they are matched to


class SetLoss(nn.Module):
    """Sum class, L1 and GIoU losses over every decoder layer; the layers before the last are auxiliary."""

    weights: Tensor

    def __init__(
        self, classes: int, l1: float = 5.0, giou: float = 2.0, nothing: float = 0.1, auxiliary: bool = True
    ) -> None:
        super().__init__()
        self.l1, self.giou, self.auxiliary = l1, giou, auxiliary
        weights = torch.ones(classes + 1)
        weights[-1] = nothing  # most queries name nothing
        self.register_buffer("weights", weights, persistent=False)

    def forward(
        self,
        scores: Tensor,
        boxes: Tensor,
        targets: Sequence[dict[str, Tensor]],
        sizes: list[tuple[int, int]],
        batch: torch.Size | tuple[int, int],
    ) -> dict[str, Tensor]:
        height, width = batch
        scale = boxes.new_tensor((width, height, width, height), dtype=torch.float32)
        wanted = [box_convert(each["boxes"].float(), "xyxy", "cxcywh") / scale for each in targets]
        labels = [each["labels"] for each in targets]
        losses: dict[str, Tensor] = {}
        for layer in range(len(scores)) if self.auxiliary else (len(scores) - 1,):
            suffix = "" if layer == len(scores) - 1 else f"_{layer}"
            part = self._layer(scores[layer].float(), boxes[layer].float(), labels, wanted)
            losses |= {name + suffix: value for name, value in part.items()}
        return losses

    def _layer(self, scores: Tensor, boxes: Tensor, labels: list[Tensor], wanted: list[Tensor]) -> dict[str, Tensor]:
        pairs = self.match(scores, boxes, labels, wanted)
        target = torch.full(scores.shape[:2], scores.shape[-1] - 1, device=scores.device)
        for row, (query, thing), label in zip(target, pairs, labels, strict=True):
            row[query] = label[thing]
        classes = F.cross_entropy(scores.flatten(0, 1), target.flatten(), self.weights.to(scores.device))
        ours = torch.cat([box[query] for box, (query, _) in zip(boxes, pairs, strict=True)])
        theirs = torch.cat([box[thing] for box, (_, thing) in zip(wanted, pairs, strict=True)])
        count = max(len(theirs), 1)
        overlap = torch.diag(generalized_box_iou(to_corners(ours), to_corners(theirs)))
        return {
            "classes": classes,
            "l1": self.l1 * (ours - theirs).abs().sum() / count,
            "giou": self.giou * (1 - overlap).sum() / count,
        }

    @torch.no_grad()
    def match(self, scores: Tensor, boxes: Tensor, labels: list[Tensor], wanted: list[Tensor]) -> Pairs:
        """Find the cheapest one-to-one matching of each image's queries and objects."""
        solve = _solver()
        pairs: Pairs = []
        for score, box, label, target in zip(scores.softmax(-1), boxes, labels, wanted, strict=True):
            near = torch.cdist(box, target, p=1)
            overlap = generalized_box_iou(to_corners(box), to_corners(target))
            price = self.l1 * near - score[:, label] - self.giou * overlap
            query, thing = solve(torch.nan_to_num(price, nan=1e6).cpu().numpy())
            pairs.append((torch.as_tensor(query, device=box.device), torch.as_tensor(thing, device=box.device)))
        return pairs


def to_corners(boxes: Tensor) -> Tensor:
    """Turn (centre x, centre y, width, height) into (x1, y1, x2, y2)."""
    return box_convert(boxes, "cxcywh", "xyxy")


def _solver() -> Any:
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise GlocalError("DETR matches boxes with scipy: pip install 'glocal[detect]'.") from None
    return linear_sum_assignment
