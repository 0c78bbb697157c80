"""How well boxes and masks are found: COCO's figures, and VOC's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from glocal.errors import GlocalError
from glocal.measure.voc import voc_figures

_NAMES = {
    "map": "ap",
    "map_50": "ap50",
    "map_75": "ap75",
    "map_small": "ap_s",
    "map_medium": "ap_m",
    "map_large": "ap_l",
}


class BoxTally:
    """Gathers detections and objects of many images, and sums them up in percent."""

    def __init__(self, classes: int, masks: bool = False) -> None:
        self.classes, self.masks = classes, masks
        self.found: list[dict[str, Tensor]] = []
        self.wanted: list[dict[str, Tensor]] = []

    def add(self, found: Sequence[dict[str, Tensor]], wanted: Sequence[dict[str, Any]]) -> None:
        """Take in images: boxes (n, 4), labels, scores and masks found; boxes, labels, hard and masks wanted."""
        kept = ("boxes", "labels", "scores", "hard", *(["masks"] if self.masks else []))
        for ours, theirs in ((self.found, found), (self.wanted, wanted)):
            ours += [{key: value.cpu() for key, value in each.items() if key in kept} for each in theirs]

    def figures(self) -> dict[str, Any]:
        """Sum up: COCO's AP over ten overlaps and by size, for masks too, and VOC's mAP and F1."""
        figures = coco_figures(self.found, self.wanted, masks=self.masks)
        return figures | voc_figures(self.found, self.wanted, self.classes) | {"images": len(self.wanted)}


def coco_figures(
    found: Sequence[dict[str, Tensor]], wanted: Sequence[dict[str, Tensor]], *, masks: bool = False
) -> dict[str, float]:
    """Give COCO's average precisions in percent; a size that does not occur is left out."""
    try:
        import faster_coco_eval  # noqa: F401
    except ImportError:
        raise GlocalError("average precision is measured by an extra: pip install 'glocal[detect]'.") from None
    from torchmetrics.detection import MeanAveragePrecision

    kinds: Any = ("bbox", "segm") if masks else "bbox"
    # Left to itself, torchmetrics rounds these steps to float32, and misses COCO's figures by some 0.02 %.
    steps = {"iou_thresholds": np.linspace(0.5, 0.95, 10).tolist(), "rec_thresholds": np.linspace(0, 1, 101).tolist()}
    metric = MeanAveragePrecision(iou_type=kinds, backend="faster_coco_eval", sync_on_compute=False, **steps)
    metric.warn_on_many_detections = False
    metric.update(
        [_with_masks(each, masks) for each in found],
        [_with_masks({**each, "iscrowd": each["hard"].long()}, masks) for each in wanted],
    )
    read = metric.compute()
    figures: dict[str, float] = {}
    for start, told in (("bbox_", ""), ("segm_", "mask_")) if masks else (("", ""),):
        for theirs, ours in _NAMES.items():
            value = float(read[start + theirs])
            if value >= 0:  # -1 stands for: no such object
                figures[told + ours] = 100 * value
    return {"ap": 0.0, **figures}


def _with_masks(each: dict[str, Tensor], masks: bool) -> dict[str, Tensor]:
    kept = {key: value for key, value in each.items() if key != "hard"}
    if masks:
        drawn = kept["masks"]
        kept["masks"] = (drawn[:, 0] if drawn.ndim == 4 else drawn) > 0.5
    return kept
