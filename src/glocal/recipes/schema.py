"""YAML into `train.settings`: every fault of a file at once, each with its line and the nearest valid key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from glocal.data.check import SettingsError
from glocal.data.settings import Augment, DataSettings, augment
from glocal.errors import GlocalError, nearest
from glocal.mechanisms import build, named
from glocal.recipes.lines import Lines, around, locate
from glocal.site import Mechanism
from glocal.train.settings import HostSettings, Recipe


def read(path: Path, changes: Sequence[str] = ()) -> Recipe:
    """Read a recipe file, with `key.path=value` changes applied."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GlocalError(f"{path} cannot be read: {error}") from None
    return parse(text, str(path), changes)


def parse(text: str, name: str = "recipe", changes: Sequence[str] = ()) -> Recipe:
    """Read a recipe; all its faults are reported together."""
    plain, lines = locate(text, name)
    reader = _Reader(name, lines)
    if not isinstance(plain, dict):
        raise GlocalError(f"{name}: a recipe is a mapping of keys to values, such as `epochs: 300`.")
    mapping = cast("dict[str, Any]", plain)
    for change in changes:
        reader.change(mapping, change)
    recipe = reader.build(Recipe, mapping, "")
    if reader.faults or recipe is None:
        raise GlocalError("\n".join(reader.faults))
    return recipe


def with_data(recipe: Recipe, place: str) -> Recipe:
    """Point a recipe at images: the folder of the set it names, or a set of its own."""
    known = recipe.data.name.startswith(("cifar", "torch/", "hfds/", "tfds/", "wds/"))
    return replace(recipe, data=replace(recipe.data, root=place) if known else replace(recipe.data, name=place))


@dataclass
class _Reader:
    name: str
    lines: Lines
    faults: list[str] = field(default_factory=list[str])
    changed: dict[str, str] = field(default_factory=dict[str, str])
    """What each change on the command line reaches."""

    def fault(self, path: str, text: str) -> None:
        line, change = self.lines.find(path), self._change_at(path)
        place = f"--set {change!r}" if change else f"{self.name}:{line}" if line else self.name
        self.faults.append(f"{place}: {text}")

    def _change_at(self, path: str) -> str | None:
        """Tell the change that wrote what stands at a path, or that alone made it."""
        written = next((self.changed[each] for each in around(path) if each in self.changed), None)
        if written or not path or path in self.lines.places:
            return written
        return next((change for key, change in self.changed.items() if key.startswith(f"{path}.")), None)

    def change(self, mapping: dict[str, Any], change: str) -> None:
        path, equals, value = change.partition("=")
        if not equals or not path.strip():
            self.faults.append(f"--set {change!r}: write key=value, such as optim.lr=0.001.")
            return
        try:
            ready, _ = locate(value, f"--set {change!r}")
        except GlocalError as error:
            self.faults.append(str(error))
            return
        *parents, last = path.strip().split(".")
        for parent in parents:
            inner = mapping.setdefault(parent, {})
            if not isinstance(inner, dict):
                self.faults.append(f"--set {change!r}: {parent!r} holds {inner!r}, not keys.")
                return
            mapping = cast("dict[str, Any]", inner)
        mapping[last] = ready
        self.changed[path.strip()] = change

    def build(self, kind: type[Any], value: Any, path: str) -> Any:
        """Make a dataclass of a mapping, or note what keeps it from being made."""
        if not isinstance(value, Mapping):
            self.fault(path, f"{path} is {value!r}; it takes keys: {', '.join(_names(kind))}.")
            return None
        given = dict(cast("Mapping[str, Any]", value))
        if kind is HostSettings:
            rest = {key: given.pop(key) for key in list(given) if key not in ("name", "pretrained")}
            given["arguments"] = {key: _tuples(each) for key, each in rest.items()}
        hints, before, ready = get_type_hints(kind), len(self.faults), dict[str, Any]()
        broken: list[str] = []
        for key, each in given.items():
            here, count = f"{path}.{key}" if path else str(key), len(self.faults)
            if key in hints:
                ready[key] = self.fit(hints[key], each, here)
            else:
                self.fault(here, f"unknown key {key!r}{_inside(path)}.{nearest(str(key), hints)}")
            if len(self.faults) > count:
                ready.pop(key, None)
                broken.append(here)
        for each in fields(kind):
            if _required(each) and each.name not in ready:
                # What stands in is never used: it lets the other settings be checked.
                ready[each.name] = _STAND_INS[hints[each.name]]()
                if each.name not in given:
                    broken.append(f"{path}.{each.name}" if path else each.name)
                    self.fault(path, f"key {each.name!r} is missing{_inside(path)}.{_alike(each.name, given)}")
        made = self._made(partial(kind, **ready), path, broken)
        return made if len(self.faults) == before else None

    def _made(self, make: Any, path: str, broken: Sequence[str]) -> Any:
        """Make settings, or tell what is wrong with them as far as it is not due to settings told already."""
        try:
            return make()
        except SettingsError as error:
            for keys, text in error.faults:
                if not any(each in broken for key in keys for each in around(key)):
                    self.fault(next((key for key in keys if self._change_at(key)), keys[0]), text)
        except GlocalError as error:
            if not broken:
                self.fault(path, str(error))
        return None

    def fit(self, hint: Any, value: Any, path: str) -> Any:
        """Bring a YAML value to the kind a field wants."""
        if hint == tuple[Mechanism, ...]:
            return self._mechanisms(value, path)
        if hint is Augment:
            return self.attempt(augment, value, path)
        if is_dataclass(hint):
            return self.build(cast("type[Any]", hint), value, path)
        options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        inner = [option for option in options if is_dataclass(option)]
        if inner and value is not None:
            return self.build(cast("type[Any]", inner[0]), value, path)
        for option in options:
            fits, result = _match(option, value)
            if fits:
                return result
        self.fault(path, f"{path} is {value!r}; it takes {_spoken(options)}.{_closest(options, value)}")
        return None

    def _mechanisms(self, value: Any, path: str) -> tuple[Mechanism, ...]:
        listed = cast("list[Any]", value if isinstance(value, list) else [value])
        found: list[Mechanism] = []
        for i, each in enumerate(listed):
            here = f"{path}[{i}]"
            pairs = list(cast("Mapping[str, Any]", each).items()) if isinstance(each, Mapping) else []
            if isinstance(each, str):
                found += self.attempt(named, each, here) or ()
            elif len(pairs) == 1 and (pairs[0][1] is None or isinstance(pairs[0][1], Mapping)):
                name, options = pairs[0]
                made = self.attempt(partial(build, name), options, here)
                found += [made] if made is not None else []
            else:
                self.fault(
                    here, f"mechanism {each!r} is not understood. Write `- life` or `- life: {{kernels: [1, 3]}}`."
                )
        return tuple(found)

    def attempt(self, make: Any, value: Any, path: str) -> Any:
        """Make something of a value, or note what keeps it from being made."""
        return self._made(partial(make, value), path, ())


def _match(hint: Any, value: Any) -> tuple[bool, Any]:
    """Tell whether a plain value fits a plain hint, and what it becomes."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is type(None):
        return value is None, None
    if origin is Literal:
        if isinstance(value, bool):  # YAML reads yes and no as true and false
            value = "yes" if value else "no"
        return value in inner, value
    if origin is tuple:
        return _match_tuple(inner, value)
    if origin is dict:
        return isinstance(value, dict), _tuples(value)
    if hint is float:
        return _number(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    return isinstance(value, hint), value


def _match_tuple(inner: tuple[Any, ...], value: Any) -> tuple[bool, Any]:
    listed: list[Any] = list(cast("Any", value)) if isinstance(value, (list, tuple)) else [value]
    hints = [inner[0]] * len(listed) if inner[-1] is Ellipsis else list(inner)
    if len(hints) != len(listed):
        return False, None
    matched = [_match(hint, each) for hint, each in zip(hints, listed, strict=True)]
    return all(fits for fits, _ in matched), tuple(each for _, each in matched)


def _number(value: Any) -> tuple[bool, Any]:
    if isinstance(value, str):  # YAML reads 5e-4 as a word; only 5.0e-4 is a number to it
        try:
            return True, float(value)
        except ValueError:
            return False, None
    return isinstance(value, (int, float)) and not isinstance(value, bool), value


def _closest(options: Sequence[Any], value: Any) -> str:
    words = [word for option in options if get_origin(option) is Literal for word in get_args(option)]
    return nearest(str(value), words) if words else ""


def _spoken(options: Sequence[Any]) -> str:
    return " or ".join(_word(option) for option in options)


def _word(hint: Any) -> str:
    plain: dict[Any, str] = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}
    if hint in plain:
        return plain[hint]
    if hint is type(None):
        return "nothing"
    if get_origin(hint) is Literal:
        return ", ".join(map(str, get_args(hint)))
    if get_origin(hint) is tuple:
        parts = [each for each in get_args(hint) if each is not Ellipsis]
        count = "" if Ellipsis in get_args(hint) else f"{len(parts)} "
        return f"a list of {count}({_word(parts[0])})"
    return "keys and values"


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_tuples(each) for each in cast("list[Any]", value))
    if isinstance(value, dict):
        return {key: _tuples(each) for key, each in cast("dict[str, Any]", value).items()}
    return value


_STAND_INS: dict[Any, Callable[[], Any]] = {
    str: str,
    int: lambda: 1,
    HostSettings: lambda: HostSettings(""),
    DataSettings: DataSettings,
}


def _alike(name: str, given: Mapping[str, Any]) -> str:
    """Point to the key that was perhaps meant: a host takes any other key as an argument of its builder."""
    rest = given.get("arguments")
    close = [key for key in map(str, cast("Any", rest)) if nearest(key, (name,))] if isinstance(rest, dict) else []
    return f" Is {close[0]!r} meant to be it?" if close else ""


def _required(each: Any) -> bool:
    return each.default is MISSING and each.default_factory is MISSING


def _names(kind: type[Any]) -> list[str]:
    return [each.name for each in fields(kind)]


def _inside(path: str) -> str:
    return f" in {path}" if path else ""
