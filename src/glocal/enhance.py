"""Graft mechanisms onto hosts, fold them for inference, and remember what was done."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from glocal.errors import GlocalError
from glocal.hosts import sites
from glocal.mechanisms import describe
from glocal.site import Mechanism, Seam, Site
from glocal.wrappers import Wrapper


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

    def __str__(self) -> str:
        lines = [
            f"{self.name or self.host}: {len(self.grafts)} grafts, {len(self.kept)} parameters kept, "
            f"{len(self.new)} new, {len(self.gone)} gone"
        ]
        lines += [f"  {each.mechanism:<18} {each.seam:<10} {each.path}" for each in self.grafts]
        return "\n".join(lines)


@dataclass(frozen=True)
class _Plan:
    mechanism: Mechanism
    site: Site
    replaces: bool


# A fixed order, inner places first, so that the order of arguments does not matter.
_ORDER = list(Seam)


def enhance(model: nn.Module, *mechanisms: Mechanism, inplace: bool = False, preserve: bool = False) -> nn.Module:
    """Graft mechanisms onto a host and return it, with the record of what was done as `model.glocal`.

    The host's weights stay wherever their shapes allow. With `preserve`, outputs right after grafting equal the
    host's; a mechanism that cannot do that says so.
    """
    if not mechanisms:
        raise GlocalError("enhance() was given no mechanism. Pass at least one, such as LIFE() or ContextBroadcast().")
    for each in mechanisms:
        if not isinstance(each, Mechanism) or isinstance(each, type):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlocalError(f"{each!r} is not a mechanism. Pass configs such as LIFE() or ContextBroadcast().")
    if inplace:
        _rehearse(model, mechanisms, preserve)
    else:
        model = copy.deepcopy(model)
    plans = _plan(model, mechanisms, preserve)
    before = _tensors(model)
    record = cast("Record | None", getattr(model, "glocal", None)) or Record(type(model).__name__)
    for plan in plans:
        _graft(model, plan, preserve)
        label = type(plan.mechanism).__name__
        record.grafts.append(Graft(label, str(plan.site.seam), plan.site.path, plan.site.layer))
    record.steps.append(Step(tuple(describe(each) for each in mechanisms), preserve))
    _compare(record, before, _tensors(model))
    model.glocal = record  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    return model


def fold(model: nn.Module) -> nn.Module:
    """Make an inference copy with BatchNorm merged into the convolutions before it; outputs stay the same."""
    folded = copy.deepcopy(model).eval()
    for module in list(folded.modules()):
        merge = getattr(type(module), "fold", None)
        if callable(merge):
            merge(module)
    return folded.requires_grad_(False)


def _rehearse(model: nn.Module, mechanisms: Sequence[Mechanism], preserve: bool) -> None:
    """Graft onto a copy without storage first, so that a refusal half way leaves the host as it was."""
    memo: dict[int, Any] = {id(each): torch.empty_like(each, device="meta") for each in model.buffers()}
    memo |= {id(each): nn.Parameter(torch.empty_like(each, device="meta")) for each in model.parameters()}
    shadow = copy.deepcopy(model, memo)
    with torch.device("meta"):
        for plan in _plan(shadow, mechanisms, preserve):
            _graft(shadow, plan, preserve)


def _plan(model: nn.Module, mechanisms: Sequence[Mechanism], preserve: bool) -> list[_Plan]:
    offered = sites(model)
    plans = [plan for each in mechanisms for plan in _wishes(model, each, offered, preserve)]
    _refuse_clashes(plans)
    return sorted(plans, key=lambda plan: (not plan.replaces, _ORDER.index(plan.site.seam), _rank(plan.mechanism)))


def _wishes(model: nn.Module, mechanism: Mechanism, offered: list[Site], preserve: bool) -> list[_Plan]:
    plans: list[_Plan] = []
    for seam in mechanism.seams(preserve):
        there = [site for site in offered if site.seam is seam]
        if not there:
            raise GlocalError(_misfit(model, mechanism, seam, offered))
        taken = [site for site in there if mechanism.takes(site)]
        plans += [_Plan(mechanism, site, mechanism.replaces(preserve)) for site in taken]
    for plan in plans:
        if plan.replaces and plan.site.plain:
            raise GlocalError(
                f"{_name(mechanism)} cannot replace {plan.site.path} of {type(model).__name__}: {plan.site.plain}."
            )
    if not plans:
        raise GlocalError(f"{_name(mechanism)} chose no layer of {type(model).__name__}, so it would change nothing.")
    return plans


def _misfit(model: nn.Module, mechanism: Mechanism, seam: Seam, offered: list[Site]) -> str:
    from glocal.mechanisms import DTM, LIFE, ContextBroadcast, ConvStem, EarlyMLP, LocalFFN, SqueezeContext, UniformHead

    lacks = {
        Seam.STEM: "plain patch embedding",
        Seam.POSITION: "absolute positions",
        Seam.QKV: "single q/k/v projection",
        Seam.ATTENTION: "attention",
        Seam.MIXED: "attention",
        Seam.FFN: "feed-forward network of its own",
        Seam.HIDDEN: "hidden map that can be reached",
        Seam.MERGE: "token merging",
        Seam.TOKENISER: "tokeniser with feed-forward networks",
    }
    present = {site.seam for site in offered}
    attends = bool(present & {Seam.ATTENTION, Seam.MIXED})
    missing = "attention" if seam is Seam.QKV and not attends else lacks[seam]
    usual = (LIFE(), LocalFFN(), ContextBroadcast(), DTM(), EarlyMLP(), UniformHead(), SqueezeContext(), ConvStem())
    fitting = [_name(each) for each in usual if present.issuperset(each.seams(False))]
    return (
        f"{type(model).__name__} has no {missing}, so {_name(mechanism)} has no place in it. "
        f"It takes: {', '.join(fitting) or 'no mechanism'}."
    )


def _refuse_clashes(plans: list[_Plan]) -> None:
    replaced: dict[str, _Plan] = {}
    for plan in plans:
        if not plan.replaces:
            continue
        if plan.site.path in replaced:
            first, second = _name(replaced[plan.site.path].mechanism), _name(plan.mechanism)
            raise GlocalError(f"{first} and {second} both replace {plan.site.path}. Give them different layers.")
        replaced[plan.site.path] = plan
    for plan in plans:
        for path, owner in replaced.items():
            inside = plan.site.path.startswith(f"{path}.")
            silenced = getattr(owner.mechanism, "removes", False) and plan is not owner and _same_attention(plan, owner)
            if inside or silenced:
                raise GlocalError(_overlap(owner, plan, plans))


def _same_attention(plan: _Plan, owner: _Plan) -> bool:
    about_attention = plan.site.seam in (Seam.QKV, Seam.ATTENTION, Seam.MIXED)
    return about_attention and plan.site.layer == owner.site.layer


def _overlap(owner: _Plan, plan: _Plan, plans: list[_Plan]) -> str:
    taken = {each.site.layer for each in plans if each.mechanism is owner.mechanism}
    free = sorted(set(range(owner.site.depth)) - taken)
    first, second = _name(owner.mechanism), _name(plan.mechanism)
    removes = "removes attention" if getattr(owner.mechanism, "removes", False) else f"replaces {owner.site.seam}"
    advice = (
        f'Give {second} layers="{_spans(free)}".' if free else f"Leave out one of them, or give {first} fewer layers."
    )
    return f"{first} {removes} in layers {_spans(sorted(taken))}, where {second} would sit. {advice}"


def _spans(layers: list[int]) -> str:
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _graft(model: nn.Module, plan: _Plan, preserve: bool) -> None:
    site = plan.site
    owner, name = _owner(model, site.path)
    old = getattr(owner, name)
    new = plan.mechanism.graft(site, old, preserve=preserve)
    if isinstance(new, nn.Module):
        new.train(owner.training)
        _match(new, owner)
    _put(owner, name, new)
    for attribute, value in site.wants.items():
        setattr(owner, attribute, value)
    if plan.replaces and getattr(plan.mechanism, "silences", False):
        _silence(site, owner)
    if site.cell is not None:
        site.cell.install(site.recall)


def _owner(model: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Find the module that really holds the last part of a path, through wrappers of earlier grafts."""
    parent, _, name = path.rpartition(".")
    owner = model.get_submodule(parent)
    while isinstance(owner, Wrapper) and name not in dict(owner.named_children()):
        owner = owner.host
    return owner, name


def _match(new: nn.Module, owner: nn.Module) -> None:
    """Bring a graft to the device and type of the model around it."""
    like = next((each for each in owner.parameters() if each.is_floating_point()), None)
    if like is not None:
        new.to(device=like.device, dtype=like.dtype)


def _put(owner: nn.Module, name: str, new: nn.Module | Tensor | None) -> None:
    if isinstance(new, nn.Module):
        setattr(owner, name, new)
        return
    delattr(owner, name)  # positions: a parameter gives way to a constant, or to nothing
    if new is None:
        setattr(owner, name, None)
    else:
        owner.register_buffer(name, new, persistent=False)


def _silence(site: Site, owner: nn.Module) -> None:
    """Take away the norm and drop path around a replacement that does without them."""
    for neighbour in site.branch:
        setattr(owner, neighbour, nn.Identity())
    if site.freed is not None:
        owner.__class__ = site.freed


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters(remove_duplicate=False))


def _compare(record: Record, before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    known, still = {id(each) for each in before.values()}, {id(each) for each in after.values()}
    earlier = set(record.new)
    record.kept = [name for name, each in after.items() if id(each) in known and name not in earlier]
    record.new = [name for name, each in after.items() if id(each) not in known or name in earlier]
    record.gone += [name for name, each in before.items() if id(each) not in still]


def _rank(mechanism: Mechanism) -> str:
    return type(mechanism).__name__ + repr(mechanism)


def _name(mechanism: Mechanism) -> str:
    return type(mechanism).__name__
