"""Names that the parts of a set go by."""

from __future__ import annotations

from glocal.data.settings import DataSettings

# Of folders with one folder for each class, and of .npz files.
TRAIN = ("train", "training")
VAL = ("val", "valid", "validation", "eval", "test")
# Of sets with boxes or label maps.
_TRAIN = ("train", "training", "trainval")
_VAL = ("val", "valid", "validation", "test")


def split_names(settings: DataSettings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Give the names to look for, of the training and the validation part, the likeliest first."""
    train = (settings.train_split,) if settings.train_split else _TRAIN
    return train, (settings.eval_split,) if settings.eval_split else _VAL
