"""Time models turn by turn, each in a process of its own: all compile at once, then one at a time has the GPU.

python benchmarks/turns.py host life 'local-ffn' cb --job graph:256 --job graph:1 --job train-graph:256
python benchmarks/turns.py lit_small/host swin_tiny_patch4_window7_224/host --job graph:128

The first model is what the others are measured against. A round times every model of a job, one after the other; a
ratio is the median over rounds of the ratio in that round. Jobs are breakdown.py's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

HOST = "deit_tiny_patch16_224"


def main() -> None:
    """Compile everything, then go round."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", help="variant, or model/variant")
    parser.add_argument("--job", dest="jobs", action="append", required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10, help="steps in a turn")
    parser.add_argument("--wait", type=float, default=600, help="seconds to compile; what is not ready is left out")
    parser.add_argument("--ready", type=Path, help="write this file when all is compiled")
    parser.add_argument("--go", type=Path, help="then wait for this file: something else may have the GPU")
    parser.add_argument("--profile", action="store_true", help="tell the longest kernels, too")
    parser.add_argument("-o", "--out", type=Path, help="keep every figure in this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _work(options.models[0], options.jobs[0])
        return
    crew = {(job, model): Worker(model, job) for job in options.jobs for model in options.models}
    limit = time.monotonic() + options.wait
    for worker in crew.values():
        worker.settle(max(0.1, limit - time.monotonic()))
    if options.ready:
        options.ready.touch()
    while options.go and not options.go.exists():
        time.sleep(0.2)
    kept: list[dict[str, Any]] = []
    for job in options.jobs:
        for key, worker in crew.items():
            if key[0] == job and not worker.ready:
                print(f"{job} {key[1]}: {worker.end()}")
        kept += _rounds(job, {key[1]: each for key, each in crew.items() if key[0] == job and each.ready}, options)
    if options.out:
        options.out.write_text(json.dumps(kept, indent=1) + "\n")
    if options.profile:
        for (job, model), worker in crew.items():
            if worker.ready:
                print(f"== {model} {job}\n{worker.ask('profile')}", flush=True)
    for worker in crew.values():
        worker.end()


def _rounds(job: str, crew: dict[str, Worker], options: argparse.Namespace) -> list[dict[str, Any]]:
    found: dict[str, list[float]] = {model: [] for model in crew}
    for _ in range(options.rounds):
        for model, worker in list(crew.items()):
            if times := worker.ask(options.steps):
                found[model].append(median(times))
            else:
                print(f"{job} {model}: {crew.pop(model).end()}")
                found.pop(model)
    for model, times in found.items():
        line = f"{job:16} {model:34} {median(times):9.3f} ms {_spread(times)}"
        first = found.get(options.models[0])
        if first and model != options.models[0]:
            ratios = [a / b for a, b in zip(times, first, strict=True)]
            line += f"   ratio {median(ratios):.3f} {_spread(ratios)}"
        print(line, flush=True)
    return [{"job": job, "model": model, "ms": times} for model, times in found.items()]


def _spread(values: list[float]) -> str:
    if len(values) < 2:
        return ""
    low, _, high = quantiles(values, n=4)
    return f"[{low:.3f}, {high:.3f}]"


class Worker:
    """A process that has one model ready for one job."""

    def __init__(self, model: str, job: str) -> None:
        command = [sys.executable, __file__, model, "--job", job, "--worker"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.ready = False
        self.complaint = ""
        threading.Thread(target=self._listen, daemon=True).start()

    def settle(self, seconds: float) -> None:
        """Wait until the model is compiled, or long enough."""
        waiter = threading.Thread(target=self._first, daemon=True)
        waiter.start()
        waiter.join(seconds)

    def ask(self, what: object) -> Any:
        """Let it work, and give its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            self.ready = False
            return None

    def end(self) -> str:
        """Stop it, and give what it complained of last."""
        died = self.process.poll() is not None
        self.process.kill()
        self.process.wait()
        return self.complaint if died else "not compiled in time"

    def _first(self) -> None:
        assert self.process.stdout is not None
        self.ready = bool(self.process.stdout.readline())

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.complaint = line.strip() or self.complaint


def _work(model: str, job: str) -> None:
    from breakdown import clocked, prepare, told

    name, variant = model.split("/") if "/" in model else (HOST, model)
    step = prepare(name, variant, job)
    clocked(step, 4)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked == "profile":
            print(json.dumps(told(step, 16)), flush=True)
        else:
            clocked(step, 2)
            print(json.dumps(clocked(step, asked)), flush=True)


if __name__ == "__main__":
    main()
