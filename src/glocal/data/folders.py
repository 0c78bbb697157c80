"""Images in one folder for each class, or in an archive of such folders."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from glocal.data.archives import archive
from glocal.data.images import FileImages, FolderFiles, few, ignored_note, image_suffixes
from glocal.errors import GlocalError


def folder(root: Path) -> tuple[FileImages, tuple[str, ...]]:
    """Take the folders in the root as classes, whatever folders (sessions, subjects) lie within them."""
    if not root.is_dir():
        return archive(root)
    from timm.utils.misc import natural_key

    found, ignored = _walk(root)
    classes = sorted(found, key=natural_key)
    notes = _folder_notes(root, found, ignored)
    numbers = {name: number for number, name in enumerate(classes)}
    pairs = sorted(((file, numbers[c]) for c in classes for file in found[c]), key=lambda each: natural_key(each[0]))
    files = FolderFiles([file for file, _ in pairs], [number for _, number in pairs])
    return FileImages(files, torch.tensor(files.labels), tuple(classes), torch.arange(len(pairs))), notes


def _folder_notes(root: Path, found: dict[str, list[str]], ignored: list[str]) -> tuple[str, ...]:
    folders = [each.name for each in os.scandir(root) if each.is_dir() and not each.name.startswith(".")]
    if not folders:
        raise GlocalError(f"{root} has no sub-folders. Put the images of each class in a folder of its own.")
    left = ignored_note(ignored)
    if not found:
        raise GlocalError(f"{root} has no image in its {len(folders)} folders. {left}".rstrip())
    inner = {os.path.dirname(os.path.relpath(file, root)) for files in found.values() for file in files} - found.keys()
    if len(found) == 1 and inner:
        (only,) = found
        raise GlocalError(
            f"{root} has images in one folder only, {only}, which holds folders itself. "
            f"If those are the classes, give {root / only}."
        )
    empty = [str(root / name) for name in sorted(set(folders) - found.keys())]
    notes = (
        f"no image in {few(empty)}: no such class is learned" if empty else "",
        f"folders within class folders add to the class: {few(sorted(inner))}" if inner else "",
        left,
    )
    return tuple(each for each in notes if each)


def _walk(root: Path) -> tuple[dict[str, list[str]], list[str]]:
    """List the images of each class, and what is no image of any; hidden files belong to the system."""
    found: dict[str, list[str]] = {}
    ignored: list[str] = []
    for place, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        within = Path(place).relative_to(root).parts
        for name in sorted(name for name in files if not name.startswith(".")):
            if within and os.path.splitext(name)[1].lower() in image_suffixes():
                found.setdefault(within[0], []).append(os.path.join(place, name))
            else:
                ignored.append(os.path.join(place, name))
    return found, ignored
