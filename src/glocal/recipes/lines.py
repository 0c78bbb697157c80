"""YAML with the line of every key, and recipes written back as YAML."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from glocal.errors import GlocalError
from glocal.train.plain import plain
from glocal.train.settings import Recipe


@dataclass
class Lines:
    """Where each key stands, by its path such as `optim.lr` or `mechanisms[0]`."""

    places: dict[str, int] = field(default_factory=dict[str, int])

    def find(self, path: str) -> int | None:
        """Tell the line of a path, or of the nearest part of it that the file has."""
        while path and path not in self.places:
            path = re.sub(r"(\.[^.\[]+|\[\d+\]|^[^.\[]+)$", "", path)
        return self.places.get(path)


def locate(text: str) -> tuple[Any, Lines]:
    """Read YAML into plain values, and note the line of each key."""
    lines = Lines()
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if node is None:
        return {}, lines
    _walk(node, "", lines)
    return yaml.safe_load(text), lines


def _walk(node: yaml.Node, path: str, lines: Lines) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = f"{path}.{key.value}" if path else str(key.value)
            if here in lines.places:
                raise GlocalError(f"line {key.start_mark.line + 1}: key {here!r} stands twice; keep one of them.")
            lines.places[here] = key.start_mark.line + 1
            _walk(value, here, lines)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            lines.places[f"{path}[{i}]"] = value.start_mark.line + 1
            _walk(value, f"{path}[{i}]", lines)


def write(recipe: Recipe) -> str:
    """Write a recipe as YAML that `schema.read` reads back to the same recipe."""
    return yaml.safe_dump(plain(recipe), sort_keys=False, allow_unicode=True)
