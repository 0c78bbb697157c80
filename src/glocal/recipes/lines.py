"""YAML with the line of every key, and recipes written back as YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
        return next((self.places[each] for each in around(path) if each in self.places), None)


def around(path: str) -> Iterator[str]:
    """Give a path and all that it lies in: `a.b[0]`, `a.b`, `a`."""
    while path:
        yield path
        path = re.sub(r"(\.[^.\[]+|\[\d+\]|^[^.\[]+|.)$", "", path)


def locate(text: str, name: str) -> tuple[Any, Lines]:
    """Read YAML into plain values, and note the line of each key; nothing written is None."""
    lines = Lines()
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None:
            _walk(node, "", lines, (), name)
        return yaml.safe_load(text), lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = _at(name, mark.line + 1) if mark is not None else name
        raise GlocalError(f"{where}: not YAML: {getattr(error, 'problem', None) or error}.") from None
    except ValueError as error:  # what looks like a date and is none
        raise GlocalError(f"{name}: not YAML: {error}.") from None
    except RecursionError:
        raise GlocalError(f"{name}: values lie too deep in each other; a recipe has three or four levels.") from None


def _walk(node: yaml.Node, path: str, lines: Lines, above: tuple[yaml.Node, ...], name: str) -> None:
    where = _at(name, node.start_mark.line + 1)
    if any(node is each for each in above):
        raise GlocalError(f"{where}: {path} holds what it lies in, by an anchor (&) and an alias (*). Write it out.")
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = f"{path}.{key.value}" if path else str(key.value)
            line = key.start_mark.line + 1
            if here in lines.places:
                raise GlocalError(f"{_at(name, line)}: key {here!r} stands twice; keep one of them.")
            lines.places[here] = line
            _walk(value, here, lines, (*above, node), name)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            lines.places[f"{path}[{i}]"] = value.start_mark.line + 1
            _walk(value, f"{path}[{i}]", lines, (*above, node), name)


def _at(name: str, line: int) -> str:
    return name if name.startswith("--set ") else f"{name}:{line}"


def write(recipe: Recipe) -> str:
    """Write a recipe as YAML that `schema.read` reads back to the same recipe."""
    return yaml.safe_dump(plain(recipe), sort_keys=False, allow_unicode=True)
