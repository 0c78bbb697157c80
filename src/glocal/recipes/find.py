"""The recipes that come with glocal, by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from glocal.errors import GlocalError, nearest

HOME = Path(__file__).parent


@dataclass(frozen=True)
class Listed:
    """A recipe's name, and what its head says of it."""

    name: str
    head: str


def names() -> list[str]:
    """List every recipe, such as life/deit_tiny_cifar100."""
    return sorted(str(path.relative_to(HOME).with_suffix("")) for path in HOME.glob("*/*.yaml"))


def find(name: str) -> Path:
    """Find a recipe by its name, a file, or a run folder."""
    given = Path(name)
    if given.is_dir() and (given / "recipe.yaml").is_file():
        return given / "recipe.yaml"
    wanted = name
    if given.suffix.lower() in (".yaml", ".yml"):
        if given.is_file():
            return given
        wanted = name.removesuffix(given.suffix)
    known = names()
    if wanted not in known:
        raise GlocalError(
            f"{name!r} is neither a recipe file nor a recipe of glocal.{nearest(wanted, known)} "
            f"`glocal recipes` lists them."
        )
    return HOME / f"{wanted}.yaml"


def listed() -> list[Listed]:
    """Read the head of every recipe."""
    return [Listed(name, _head(HOME / f"{name}.yaml")) for name in names()]


def _head(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")
