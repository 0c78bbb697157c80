"""What was done to a model: which mechanism went where, which parameters were kept, which are new."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Graft:
    """One mechanism at one site."""

    mechanism: str
    seam: str
    path: str
    layer: int


@dataclass(frozen=True)
class Step:
    """One call of `enhance`: the mechanisms, as JSON can hold them."""

    mechanisms: tuple[dict[str, Any], ...]
    preserve: bool = False


@dataclass
class Record:
    """What `enhance` did to a model: which parameters the host kept, which are new, which had to go."""

    host: str
    name: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    steps: list[Step] = field(default_factory=list[Step])
    grafts: list[Graft] = field(default_factory=list[Graft])
    kept: list[str] = field(default_factory=list[str])
    new: list[str] = field(default_factory=list[str])
    gone: list[str] = field(default_factory=list[str])
    folded: bool = False
    """Whether this is an inference copy whose BatchNorm is merged, which cannot be rebuilt from host and mechanisms."""

    def __str__(self) -> str:
        lines = [
            f"{self.name or self.host}: {len(self.grafts)} grafts, {len(self.kept)} parameters kept, "
            f"{len(self.new)} new, {len(self.gone)} gone"
        ]
        lines += [f"  {each.mechanism:<18} {each.seam:<10} {each.path}" for each in self.grafts]
        return "\n".join(lines)

    def compare(self, before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
        """Note which parameters are the host's own still, which are new, and which had to go."""
        known, still = {id(each) for each in before.values()}, {id(each) for each in after.values()}
        earlier = set(self.new)
        self.kept = [name for name, each in after.items() if id(each) in known and name not in earlier]
        self.new = [name for name, each in after.items() if id(each) not in known or name in earlier]
        self.gone += [name for name, each in before.items() if id(each) not in still]
