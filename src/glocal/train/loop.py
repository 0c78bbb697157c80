"""The loop: any task, any number of processes, and nothing lost when it is stopped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from glocal.data.chance import number
from glocal.errors import GlocalError
from glocal.optimize import compile_training
from glocal.store import recipe_of
from glocal.train import checkpoint
from glocal.train.finite import check_gradients, check_loss
from glocal.train.journal import Journal
from glocal.train.optim import optimiser, schedule
from glocal.train.part import Part
from glocal.train.plain import differences, plain, refuse_others
from glocal.train.screen import Screen
from glocal.train.settings import Recipe
from glocal.train.shard import Shards, full
from glocal.train.signals import Interrupted, Listener
from glocal.train.tasks import Task


class Loop:
    """One run: its model, optimiser, schedule and place in the data."""

    def __init__(
        self, recipe: Recipe, model: nn.Module, task: Task, folder: Path, accelerator: Accelerator, screen: Screen
    ) -> None:
        self.recipe, self.task, self.folder, self.screen = recipe, task, folder, screen
        self.accelerator, self.device = accelerator, accelerator.device
        self.model = model.to(self.device)  # as it is: saved, averaged, evaluated
        self.record = recipe_of(self.model)  # what a checkpoint tells of the model in it
        self.ema = ModelEmaV3(self.model, decay=recipe.ema) if recipe.ema is not None else None
        self.shards = Shards(self.model) if recipe.shard and accelerator.num_processes > 1 else None
        plain_optimiser = optimiser(self.model, recipe.optim, task.images)
        self.net: Any = compile_training(self.model) if recipe.compile else self.model
        if self.shards is None:
            self.net = accelerator.prepare(self.net)
        self.optimizer: Any = accelerator.prepare(plain_optimiser)
        self.schedule = schedule(plain_optimiser, recipe.optim, recipe.epochs, task.steps)
        self.journal = Journal(folder / "log.jsonl" if accelerator.is_main_process else None)
        self.step = 0
        self.best = float("-inf")
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.running = torch.zeros((), device=self.device)  # sum of losses since the last log line
        self.since = 0
        # Looking at every loss makes a GPU wait, so there it is done only once something was found.
        self.careful = self.device.type == "cpu"
        self.part = Part(recipe.epochs)
        self.images: dict[str, int] | None = None
        """What is known of the images; a run goes on with these only."""

    @property
    def total(self) -> int:
        """Optimiser steps of the whole run."""
        return self.recipe.epochs * self.task.steps

    def run(self, title: str, part: Part | None = None) -> dict[str, Any]:
        """Train to the end, or for a part of the epochs, and return the last evaluation."""
        self.part = part or self.part
        last = min(self.part.until * self.task.steps, self.total)
        self.screen.start(title, last, self.step)
        try:
            with Listener() as listener:
                while self.step < last:
                    self._epoch(self.step // self.task.steps, listener)
        finally:
            self.screen.stop()
        return self.history[-1]

    def _epoch(self, epoch: int, listener: Listener) -> None:
        self.net.train()
        began, first, steps = time.perf_counter(), self.step, self.task.steps
        for parts in self.task.batches(epoch, self.step % self.task.steps):
            self.part.check()
            self._update(epoch, parts)
            if self.step % self.recipe.log_every == 0 or self.step == self.total:
                seconds = time.perf_counter() - began
                if not self._log(epoch, (self.step - first) * self.task.images / seconds):
                    return  # back at the last checkpoint, to look more closely
            self.screen.step(self.step)
            self._save_between(listener, began)
            # The last step of an epoch is saved with its evaluation, or a kill in between would lose that.
            if self.recipe.save.every_steps and self.step % self.recipe.save.every_steps == 0 and self.step % steps:
                self.seconds, began, first = self.seconds + time.perf_counter() - began, time.perf_counter(), self.step
                self.save("last.pt")
        self.seconds += time.perf_counter() - began
        self._finish(epoch)

    def _update(self, epoch: int, parts: list[Any]) -> None:
        self.schedule.step_update(self.step)
        for i, batch in enumerate(parts):
            key = number(self.recipe.seed, epoch, self.step, i, self.accelerator.process_index)
            last = i == len(parts) - 1
            with self._joined(last):
                loss = self.task.loss(self.net, batch, key)
                if self.careful:
                    check_loss(loss, self.step + 1, self.model, lambda b=batch, k=key: self.task.loss(self.net, b, k))
                self.accelerator.backward(loss / len(parts) if len(parts) > 1 else loss)
            self.running += loss.detach() / len(parts)
        if self.careful and self.recipe.precision != "fp16":  # half precision skips such steps by itself
            check_gradients(self.model, self.step + 1)
        self.step += 1
        self.norm = self._clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.ema is not None:
            self.ema.update(self.model)
        self.since += 1

    @contextlib.contextmanager
    def _joined(self, last: bool) -> Iterator[None]:
        """Exchange gradients between processes only at the last part of a step."""
        if self.shards is not None:
            self.shards.exchange(last)
            with self.accelerator.autocast():
                yield
            return
        with contextlib.nullcontext() if last else self.accelerator.no_sync(self.net):
            yield

    def _clip(self) -> Tensor | None:
        limit = self.recipe.optim.clip
        if limit is not None:
            return self.accelerator.clip_grad_norm_(self.net.parameters(), limit)
        if self.step % self.recipe.log_every and self.step != self.total:
            return None
        self.accelerator.unscale_gradients(self.optimizer)
        return nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])

    def _log(self, epoch: int, speed: float) -> bool:
        loss = float(self.accelerator.reduce(self.running, "mean")) / max(self.since, 1)  # pyright: ignore
        self.running.zero_()
        self.since = 0
        if not self.careful and loss != loss:
            return self._look_closely()
        rates = [group["lr"] / (group.get("lr_scale") or 1.0) for group in self.optimizer.param_groups]
        values = {"loss": loss, "lr": max(rates), "images_per_second": speed}
        if self.norm is not None:
            values["grad_norm"] = float(full(self.norm))
        self.journal.add(step=self.step, epoch=epoch, **values)
        self.accelerator.log(values, step=self.step)
        self.screen.step(self.step, loss=loss, **{"img/s": speed})
        return True

    def _look_closely(self) -> bool:
        """Go back to the last checkpoint and take its steps again, checking each: that names step and tensor."""
        self.careful = True
        if not (self.folder / "checkpoints" / "last.pt").exists():
            raise GlocalError(
                f"the loss is not a number at or before step {self.step}, before any checkpoint. Lower optim.lr."
            )
        self.screen.note("the loss is not a number: going back to the last checkpoint to see where it arises")
        self.load(shortened=True)
        return False

    def _save_between(self, listener: Listener, began: float) -> None:
        heard = listener.heard
        if self.accelerator.num_processes > 1:
            if self.step % self.recipe.log_every:
                return  # processes agree on stopping now and then, not every step
            heard = int(self.accelerator.reduce(torch.tensor(heard or 0, device=self.device), "sum")) and (heard or 15)  # pyright: ignore
        if heard and self.step % self.task.steps:
            self.seconds += time.perf_counter() - began
            self.save("last.pt")
            raise Interrupted(heard, str(self.folder))
        if heard:
            self.stopping = heard

    stopping: int | None = None
    norm: Tensor | None = None

    def _finish(self, epoch: int) -> None:
        figures = self.evaluate()
        self.history.append({"epoch": epoch, "step": self.step, **figures})
        told = {key: value for key, value in figures.items() if isinstance(value, (int, float))}
        self.journal.add(step=self.step, epoch=epoch, **{f"val_{key}": value for key, value in told.items()})
        self.accelerator.log({f"val/{key}": value for key, value in told.items()}, step=self.step)
        better = figures[self.task.best] > self.best
        self.best = max(self.best, figures[self.task.best])
        if better:
            self.save("best.pt")
        every = self.recipe.save.every_epochs
        if every and (epoch + 1) % every == 0:
            self.save(f"epoch-{epoch + 1:05}.pt")
        self.save("last.pt")  # last indeed: what a kill keeps from being written before it is written again
        if self.stopping:
            raise Interrupted(self.stopping, str(self.folder))

    def evaluate(self) -> dict[str, Any]:
        """Measure the weights as they are, and their moving average where there is one."""
        figures = self._evaluated(self.whole())
        if self.ema is not None:
            figures["ema_" + self.task.best] = self._evaluated(self.ema.module)[self.task.best]
        return figures

    def whole(self) -> nn.Module:
        """Give the model as one piece, on every process."""
        return self.model if self.shards is None else self.shards.gather()

    def _evaluated(self, model: nn.Module) -> dict[str, Any]:
        if self.accelerator.num_processes > 1:
            for buffer in model.buffers():
                torch.distributed.broadcast(buffer, 0)  # running statistics differ between processes
        model.eval()
        with torch.no_grad(), self.accelerator.autocast(), self.part.checked(model):
            figures = self.task.evaluate(model, lambda each: self.accelerator.reduce(each, "sum"))  # pyright: ignore
        model.train()
        return figures

    def save(self, name: str) -> None:
        """Write everything the run needs to go on from here."""
        rank_states = gather_object([checkpoint.random_state()])
        model, states = self._states()
        if not self.accelerator.is_main_process:
            return
        scaler = self.accelerator.scaler
        state = {
            "recipe": plain(self.recipe),
            "images": self.images,
            "record": self.record,
            "step": self.step,
            "model": model,
            "ema": None if self.ema is None else self.ema.module.state_dict(),
            "optimizer": states,
            "scaler": None if scaler is None else scaler.state_dict(),
            "random": rank_states,
            "best": self.best,
            "history": self.history,
            "seconds": self.seconds,
            "running": (self.running.cpu(), self.since),
            "processes": self.accelerator.num_processes,
        }
        checkpoint.write(self.folder / "checkpoints" / name, state)
        checkpoint.prune(self.folder / "checkpoints", self.recipe.save.keep)

    def _states(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.shards is None:
            return self.model.state_dict(), self.optimizer.state_dict()
        return self.shards.states(self.optimizer.optimizer)

    def load(self, *, shortened: bool = False) -> None:
        """Go on from the last checkpoint; a recipe that differs is refused, but for its length where that is meant."""
        state = checkpoint.read(self.folder / "checkpoints" / "last.pt")
        changed = differences(state["recipe"], plain(self.recipe))
        if shortened:
            changed = [each for each in changed if not each.startswith(("epochs:", "optim.warmup_epochs:"))]
        if changed:
            raise GlocalError(
                f"{self.folder} was begun with another recipe: {'; '.join(changed[:5])}. "
                f"Use its own recipe, or another folder."
            )
        refuse_others(self.folder, state.get("images"), self.images)
        if self.shards is not None:
            self.shards.restore(self.optimizer.optimizer, state["model"], state["optimizer"])
        else:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        if self.ema is not None:
            self.ema.module.load_state_dict(state["ema"])
        if self.accelerator.scaler is not None and state["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.step, self.best, self.history = state["step"], state["best"], state["history"]
        self.seconds = state["seconds"]
        running, self.since = state["running"]
        self.running.copy_(running)
        if state["processes"] == self.accelerator.num_processes:
            checkpoint.restore_random(state["random"][self.accelerator.process_index])
        else:
            self.screen.note(f"begun with {state['processes']} processes: what dropout draws will differ from here on")
        self.journal.cut(self.step)
