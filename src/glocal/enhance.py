"""Graft mechanisms onto hosts, and fold them for inference."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from glocal.errors import GlocalError
from glocal.mechanisms import describe
from glocal.plan import Plan, plan_grafts
from glocal.record import Graft, Record, Step
from glocal.site import Mechanism, Site
from glocal.wrappers import Wrapper

__all__ = ["Graft", "Record", "Step", "enhance", "fold"]


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
    plans = plan_grafts(model, mechanisms, preserve)
    before = _tensors(model)
    record = cast("Record | None", getattr(model, "glocal", None)) or Record(type(model).__name__)
    for plan in plans:
        _graft(model, plan, preserve)
        label = type(plan.mechanism).__name__
        record.grafts.append(Graft(label, str(plan.site.seam), plan.site.path, plan.site.layer))
    record.steps.append(Step(tuple(describe(each) for each in mechanisms), preserve))
    record.compare(before, _tensors(model))
    model.glocal = record  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    return model


def fold(model: nn.Module) -> nn.Module:
    """Make an inference copy with BatchNorm merged into the convolutions before it; outputs stay the same."""
    folded = copy.deepcopy(model).eval()
    for module in list(folded.modules()):
        merge = getattr(type(module), "fold", None)
        if callable(merge):
            merge(module)
    record = getattr(folded, "glocal", None)
    if isinstance(record, Record):
        record.folded = record.folded or folded.state_dict().keys() != model.state_dict().keys()
    return folded.requires_grad_(False)


def _rehearse(model: nn.Module, mechanisms: Sequence[Mechanism], preserve: bool) -> None:
    """Graft onto a copy without storage first, so that a refusal half way leaves the host as it was."""
    memo: dict[int, Any] = {id(each): torch.empty_like(each, device="meta") for each in model.buffers()}
    memo |= {id(each): nn.Parameter(torch.empty_like(each, device="meta")) for each in model.parameters()}
    shadow = copy.deepcopy(model, memo)
    with torch.device("meta"):
        for plan in plan_grafts(shadow, mechanisms, preserve):
            _graft(shadow, plan, preserve)


def _graft(model: nn.Module, plan: Plan, preserve: bool) -> None:
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
    for cell in (site.cell, site.sets):
        if cell is not None:
            cell.install(site.recall)
    if plan.replaces and getattr(plan.mechanism, "silences", False):
        _silence(site, owner)


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
        silent, old = nn.Identity(), getattr(owner, neighbour)
        vars(silent)["_forward_pre_hooks"] = vars(old)["_forward_pre_hooks"]  # a lattice may be remembered there
        setattr(owner, neighbour, silent)
    if site.freed is not None:
        owner.__class__ = site.freed


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters(remove_duplicate=False))
