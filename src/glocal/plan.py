"""Decide what goes where before anything is touched, and refuse what cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from glocal.errors import GlocalError
from glocal.hosts import sites
from glocal.site import Mechanism, Seam, Site


@dataclass(frozen=True)
class Plan:
    """One mechanism, one site it will sit at, and whether it takes the place of what is there."""

    mechanism: Mechanism
    site: Site
    replaces: bool


# A fixed order, inner places first, so that the order of arguments does not matter.
_ORDER = list(Seam)


def plan_grafts(model: nn.Module, mechanisms: Sequence[Mechanism], preserve: bool) -> list[Plan]:
    """List the grafts to make, in the order to make them."""
    offered = sites(model)
    plans = [plan for each in mechanisms for plan in _wishes(model, each, offered, preserve)]
    _refuse_clashes(plans)
    return sorted(plans, key=lambda plan: (not plan.replaces, _ORDER.index(plan.site.seam), _rank(plan.mechanism)))


def _wishes(model: nn.Module, mechanism: Mechanism, offered: list[Site], preserve: bool) -> list[Plan]:
    plans: list[Plan] = []
    for seam in mechanism.seams(preserve):
        there = [site for site in offered if site.seam is seam]
        if not there:
            raise GlocalError(_misfit(model, mechanism, seam, offered))
        taken = [site for site in there if mechanism.takes(site)]
        plans += [Plan(mechanism, site, mechanism.replaces(preserve)) for site in taken]
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


def _refuse_clashes(plans: list[Plan]) -> None:
    replaced: dict[str, Plan] = {}
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


def _same_attention(plan: Plan, owner: Plan) -> bool:
    about_attention = plan.site.seam in (Seam.QKV, Seam.ATTENTION, Seam.MIXED)
    return about_attention and plan.site.layer == owner.site.layer


def _overlap(owner: Plan, plan: Plan, plans: list[Plan]) -> str:
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


def _rank(mechanism: Mechanism) -> str:
    return type(mechanism).__name__ + repr(mechanism)


def _name(mechanism: Mechanism) -> str:
    return type(mechanism).__name__
