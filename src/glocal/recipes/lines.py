"""YAML with the line of every key, and recipes written back as YAML."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import yaml

from glocal.errors import GlocalError
from glocal.mechanisms import describe
from glocal.train.settings import HostSettings, Recipe


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


def plain(value: Any) -> Any:
    """Turn settings into what YAML and JSON can hold, complete and in a fixed order."""
    if isinstance(value, Recipe):
        mapping = {each.name: plain(getattr(value, each.name)) for each in fields(value) if each.name != "mechanisms"}
        listed = [dict(describe(each)) for each in value.mechanisms]
        return mapping | {"mechanisms": [{each.pop("name"): plain(each)} for each in listed]}
    if isinstance(value, HostSettings):
        return {"name": value.name, "pretrained": value.pretrained} | plain(value.arguments)
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (tuple, list)) else value


def write(recipe: Recipe) -> str:
    """Write a recipe as YAML that `schema.read` reads back to the same recipe."""
    return yaml.safe_dump(plain(recipe), sort_keys=False, allow_unicode=True)


def differences(first: Any, second: Any, path: str = "") -> list[str]:
    """List where two plain recipes differ, as `key: old -> new`."""
    if isinstance(first, dict) and isinstance(second, dict):
        found: list[str] = []
        for key in dict.fromkeys((*first, *second)):
            here = f"{path}.{key}" if path else str(key)
            found += differences(first.get(key), second.get(key), here)
        return found
    return [] if first == second else [f"{path}: {first!r} -> {second!r}"]
