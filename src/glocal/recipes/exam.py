"""Put a trained classifier before images: they look as they did in training, and their classes are the model's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from glocal.data.decode import share_seen, to_memory
from glocal.data.feed import Batch, FileFeed, feed
from glocal.data.images import Images, MemoryImages, Pair, StreamImages, with_channels
from glocal.data.order import Order
from glocal.data.reassessed import real_images
from glocal.data.settings import DataSettings
from glocal.data.sources import fits, load, load_measured, validation_part
from glocal.errors import GlocalError
from glocal.recipes.classes import Matched, imagenet_columns, match
from glocal.recipes.trained import Trained

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Exam:
    """A model and the images it is asked about, with what its answers may be."""

    trained: Trained
    images: Images
    classes: tuple[str, ...]
    columns: tuple[int, ...] | None
    settings: DataSettings
    tell: Tell

    def batches(self) -> Iterator[Batch]:
        """Give normalised images and their labels, all of them once; at least one image must be whole."""
        trained, images = self.trained, self.images
        source = feed(images, images, self.settings, Order(len(images), 1), trained.device, trained.size)
        if isinstance(source, FileFeed):
            source.skipped.tell = self.tell
        some = False
        for batch in source.val():
            some = True
            yield batch
        if not some:
            raise GlocalError(f"none of {len(images)} images of {self.settings.name} can be read. Are they whole?")

    def answer(self, images: Tensor) -> Tensor:
        """Give the model's answers in the order of `classes`."""
        answers = self.trained.model(images)
        return answers if self.columns is None else answers[:, self.columns]


def sit(trained: Trained, data: str | None, batch: int, tell: Tell, all_classes: bool = False) -> Exam:
    """Open a model's own validation images, or others with its classes.

    Others are measured as a whole where they have no validation part. `tell` hears what is to be known of the images.
    """
    settings = _settings(trained, data, batch)
    pair = load(settings) if data is None else load_measured(settings)
    matched = match(trained, pair.val, settings.name, all_classes)
    notes = (*pair.notes, *matched.notes, *_warnings(trained, data))
    return _opened(trained, matched, fits(pair, settings, trained.size), notes, settings, tell)


def sit_real(trained: Trained, data: str | None, labels: list[list[int]], batch: int, tell: Tell) -> Exam:
    """Open ImageNet's validation images, whose labels are their places in the list given."""
    columns = imagenet_columns(trained)
    if columns is None:
        raise GlocalError(
            f"the labels are of ImageNet-1k's 1,000 classes; the model knows {len(trained.classes)} others, "
            f"such as {trained.classes[0]}. Give a model of ImageNet-1k."
        )
    settings = _settings(trained, data, batch)
    root = Path(settings.name)
    images, notes = real_images((validation_part(root) if root.is_dir() else None) or root, labels)
    small = fits(Pair(images, images), settings, trained.size)
    return _opened(trained, Matched(images, images.classes, columns), small, notes, settings, tell)


def _settings(trained: Trained, data: str | None, batch: int) -> DataSettings:
    name = trained.data.name if data is None else data
    if data is None and not name:
        raise GlocalError("the model has no images of its own; say which to measure: --data FOLDER.")
    return replace(trained.data, name=name, batch_size=batch, size=trained.size, workers=2)


def _opened(
    trained: Trained, matched: Matched, small: bool, notes: tuple[str, ...], settings: DataSettings, tell: Tell
) -> Exam:
    images, more = _as_in_training(trained, matched.images, settings.name), tuple[str, ...]()
    if small:
        images, more = to_memory(images, trained.size, settings.unreadable, share_seen(settings, trained.size))
    for note in (*trained.notes, *notes, *more):
        tell(note)
    return Exam(trained, images, matched.classes, matched.columns, settings, tell)


def _as_in_training(trained: Trained, images: Images, name: str) -> Images:
    """Make images look as they did in training, wherever they come from: their statistics, grey or RGB."""
    channels = len(trained.mean)
    images = replace(images, mean=trained.mean, std=trained.std)
    if isinstance(images, StreamImages) and channels != 3:
        raise GlocalError(f"the model takes grey images, {name} is a stream of RGB. Give a folder or .npz.")
    return with_channels(images, channels) if isinstance(images, MemoryImages) else images


def _warnings(trained: Trained, data: str | None) -> tuple[str, ...]:
    if data is None or not trained.data.name or not Path(data).exists():
        return ()
    if Path(data).resolve() != Path(trained.data.name).resolve():
        return ()
    if validation_part(Path(data)) is not None:
        return ()
    return ("the model learned from most of these images; without --data only those held out are measured",)
