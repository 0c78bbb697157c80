"""Settings as plain values that YAML and JSON can hold, and where two of them differ."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from glocal.errors import GlocalError
from glocal.mechanisms import describe
from glocal.train.settings import HostSettings, Recipe


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


def differences(first: Any, second: Any, path: str = "") -> list[str]:
    """List where two plain recipes differ, as `key: old -> new`.

    A key that only the newer one has, and that is off, is no difference: there was no such key before.
    """
    if isinstance(first, dict) and isinstance(second, dict):
        found: list[str] = []
        for key in dict.fromkeys((*first, *second)):
            here = f"{path}.{key}" if path else str(key)
            if key in first or second[key] not in (None, False, [], {}):
                found += differences(first.get(key), second.get(key), here)
        return found
    return [] if first == second else [f"{path}: {first!r} -> {second!r}"]


def refuse_others(folder: Path, before: dict[str, int] | None, now: dict[str, int] | None) -> None:
    """Raise where a folder was begun with other images: steps, held-out images and classes would not be the same."""
    if before is not None and now is not None and (changed := differences(before, now)):
        raise GlocalError(
            f"{folder} was begun with other images: {'; '.join(changed)}. "
            f"Bring them back as they were, or begin in another folder with -o."
        )
