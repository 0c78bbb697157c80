"""Mechanisms as people write them: `local-ffn(gate=eca,expansion=6)@low+cb` on the command line, mappings in YAML."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any

from glocal.errors import GlocalError, nearest
from glocal.mechanisms.context import ContextBroadcast
from glocal.mechanisms.conv_stem import ConvStem
from glocal.mechanisms.early_mlp import EarlyMLP
from glocal.mechanisms.life import LIFE
from glocal.mechanisms.local_ffn import LocalFFN
from glocal.mechanisms.squeeze_context import SqueezeContext
from glocal.mechanisms.token_merge import DTM
from glocal.mechanisms.uniform_head import UniformHead
from glocal.site import Mechanism

CONFIGS: dict[str, type[Any]] = {
    "life": LIFE,
    "local_ffn": LocalFFN,
    "context_broadcast": ContextBroadcast,
    "dtm": DTM,
    "early_mlp": EarlyMLP,
    "uniform_head": UniformHead,
    "squeeze_context": SqueezeContext,
    "conv_stem": ConvStem,
}
_SHORT: dict[str, tuple[str, dict[str, Any]]] = {
    "cb": ("context_broadcast", {}),
    "cbs": ("context_broadcast", {"scaled": True}),
}
_TERM = re.compile(r"(?P<name>[A-Za-z][\w-]*)\s*(?:\((?P<options>.*)\))?\s*(?:@(?P<layers>.+))?", re.DOTALL)


def named(text: str) -> tuple[Mechanism, ...]:
    """Read one variant: mechanisms joined by `+`, options in parentheses, layers after `@`."""
    return tuple(_term(term) for term in _cut(text, "+"))


def build(name: str, options: Mapping[str, Any] | None = None) -> Mechanism:
    """Make a mechanism from its name and options."""
    key = name.replace("-", "_").lower()
    config, preset = _SHORT.get(key, (key, {}))
    if config not in CONFIGS:
        choices = (*CONFIGS, *_SHORT)
        raise GlocalError(f"unknown mechanism {name!r}.{nearest(key, choices)} There are: {', '.join(choices)}.")
    kind, given = CONFIGS[config], dict(options or {})
    known = {each.name: each for each in fields(kind)}
    for option in given:
        if option not in known:
            raise GlocalError(
                f"unknown option {option!r} of {name}.{nearest(option, known)} It takes: {', '.join(known) or 'none'}."
            )
    tidy = {option: _fit(kind, name, option, value) for option, value in given.items()}
    return kind(**preset, **tidy)


def spelled(*mechanisms: Mechanism) -> str:
    """Write mechanisms the way `named` reads them, shortest form."""
    return "+".join(_spell(each) for each in mechanisms)


def describe(mechanism: Mechanism) -> dict[str, Any]:
    """Give a mechanism as JSON can hold it: its name and the options that differ from the defaults."""
    name = next(name for name, kind in CONFIGS.items() if type(mechanism) is kind)
    return {"name": name, **_changed(mechanism)}


def _term(text: str) -> Mechanism:
    match = _TERM.fullmatch(text.strip())
    if not match:
        raise GlocalError(f"cannot read mechanism {text!r}. Write name(option=value,...)@layers, such as life@4-11.")
    options: dict[str, Any] = {}
    for pair in _cut(match["options"] or "", ","):
        if not pair.strip():
            continue
        option, equals, value = pair.partition("=")
        if not equals:
            raise GlocalError(f"cannot read option {pair.strip()!r} of {match['name']}. Write option=value.")
        options[option.strip().replace("-", "_")] = _value(value.strip())
    if match["layers"]:
        options["layers"] = match["layers"].strip()
    return build(match["name"], options)


def _cut(text: str, mark: str) -> list[str]:
    """Split at a mark that is not inside parentheses or brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == mark and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    if depth:
        raise GlocalError(f"parentheses do not match in {text!r}.")
    return parts


def _value(text: str) -> Any:
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _fit(kind: type[Any], name: str, option: str, value: Any) -> Any:
    """Bring a written value to the option's kind: lists become tuples, a lone number a tuple of one."""
    default = next(each.default for each in fields(kind) if each.name == option)
    value = tuple(value) if isinstance(value, list) else value
    if option in ("widths", "kernels", "stages") and isinstance(value, int):
        return (value,)
    if isinstance(default, bool) and not isinstance(value, bool):
        raise GlocalError(f"{name}'s {option} is {value!r}; it is true or false.")
    if isinstance(default, int) and not isinstance(default, bool) and not isinstance(value, int):
        raise GlocalError(f"{name}'s {option} is {value!r}; it is a whole number, such as {default}.")
    if isinstance(default, tuple) and not (isinstance(value, tuple) and all(isinstance(v, int) for v in value)):
        raise GlocalError(f"{name}'s {option} is {value!r}; it is a list of whole numbers, such as {list(default)}.")
    if option == "layers" and isinstance(value, int):
        return (value,)
    return value


def _changed(mechanism: Any) -> dict[str, Any]:
    values = asdict(mechanism)
    return {each.name: values[each.name] for each in fields(mechanism) if values[each.name] != _default(each)}


def _default(field: Any) -> Any:
    return None if field.default is MISSING else field.default


def _spell(mechanism: Mechanism) -> str:
    options = describe(mechanism)
    name = options.pop("name")
    if name == "context_broadcast":
        name = "cbs" if options.pop("scaled", False) else "cb"
    layers = options.pop("layers", None)
    if isinstance(layers, tuple):
        layers = ",".join(map(str, layers))
    inside = ",".join(f"{key}={_written(value)}" for key, value in options.items())
    return name.replace("_", "-") + (f"({inside})" if inside else "") + (f"@{layers}" if layers is not None else "")


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return "(" + ",".join(map(str, value)) + (",)" if len(value) == 1 else ")")
    return str(value).lower() if isinstance(value, bool) else str(value)
