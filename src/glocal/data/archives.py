"""Images in a .tar of class folders, or of one .tar for each class."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from PIL import Image

from glocal.data.images import FileImages, few, ignored_note, image_suffixes
from glocal.data.splits import TRAIN, VAL
from glocal.errors import GlocalError


@dataclass(frozen=True)
class Member:
    """Where an image's bytes lie in an archive."""

    name: str
    start: int
    length: int

    @property
    def folders(self) -> tuple[str, ...]:
        """Name the folders it lies in."""
        return PurePosixPath(self.name).parts[:-1]


@dataclass(frozen=True)
class ArchiveFiles:
    """Images of an archive and the number of each one's class."""

    archive: str
    members: list[Member]
    labels: list[int]

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        member = self.members[index]
        with open(self.archive, "rb") as file:  # several threads read at once, so none holds it open
            file.seek(member.start)
            return Image.open(io.BytesIO(file.read(member.length))), self.labels[index]

    def filename(self, index: int, absolute: bool = False) -> str:
        """Name an image by its archive and its place within."""
        return f"{self.archive}/{self.members[index].name}"


def archive(path: Path) -> tuple[FileImages, tuple[str, ...]]:
    """Take the top-level folders as classes, below one folder that may hold them all."""
    from timm.utils.misc import natural_key

    try:
        with tarfile.open(path, "r:") as opened:
            listed = list(_members(opened, "", 0))
    except (tarfile.TarError, OSError) as error:
        raise GlocalError(
            f"{path} cannot be read as .tar of class folders with images: {error}. A compressed one must be unpacked."
        ) from None
    found = [each for each in listed if each.folders and PurePosixPath(each.name).suffix.lower() in image_suffixes()]
    level, images, told = _classed(found)
    left = ignored_note({each.name for each in listed} - {each.name for each in images})
    if not images:
        raise GlocalError(f"{path} has no image in a class folder. {left}".rstrip())
    images.sort(key=lambda each: natural_key(each.name))
    classes = sorted({each.folders[level] for each in images}, key=natural_key)
    numbers = {name: number for number, name in enumerate(classes)}
    labels = [numbers[each.folders[level]] for each in images]
    files = ArchiveFiles(str(path), images, labels)
    notes = tuple(each for each in (told, left) if each)
    return FileImages(files, torch.tensor(labels), tuple(classes), torch.arange(len(labels))), notes


def _members(opened: tarfile.TarFile, within: str, start: int) -> Iterator[Member]:
    """List the files, those of archives within too; hidden ones belong to the system."""
    for each in opened:
        name = os.path.normpath(f"{within}/{each.name}").lstrip("/")
        if not each.isfile() or any(part.startswith(".") for part in PurePosixPath(each.name).parts):
            continue
        if name.endswith(".tar"):
            with tarfile.open(fileobj=opened.extractfile(each), mode="r:") as deeper:
                yield from _members(deeper, name.removesuffix(".tar"), start + each.offset_data)
        else:
            yield Member(name, start + each.offset_data, each.size)


def _classed(images: list[Member]) -> tuple[int, list[Member], str]:
    """Tell how deep the classes lie, which images lie that deep, and what is to be known of it."""
    level = 0
    while len({each.folders[level] for each in images}) == 1:
        deeper = [each for each in images if len(each.folders) > level + 1]
        if not deeper:
            break
        level, images = level + 1, deeper
    parts = {each.folders[level] for each in images}
    deeper = [each for each in images if len(each.folders) > level + 1]
    if not deeper or not parts <= {*TRAIN, *VAL}:
        return level, images, ""
    return level + 1, deeper, f"{few(sorted(parts))} of the archive are taken as one set; unpack it to keep them apart"
