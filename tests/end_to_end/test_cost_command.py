"""The command line as a user meets it: real processes, real exit codes."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest


def glocal(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "glocal", *arguments], capture_output=True, text=True, check=False)


def test_cost_prints_host_and_variants() -> None:
    done = glocal("cost", "deit_tiny_patch16_224", "--with", "life", "--with", "local-ffn+cb", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert [row["model"] for row in json.loads(done.stdout)] == ["deit_tiny_patch16_224", "+ life", "+ local-ffn+cb"]


def test_help_answers_at_once() -> None:
    def spent() -> float:  # processor time, so that a busy machine does not count
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    start = spent()
    for _ in range(3):
        assert glocal("--help").returncode == 0
    assert (spent() - start) / 3 < 0.6


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["cost", "deit_tiny_patch16_24"], "Did you mean 'deit_tiny_patch16_224'?"),
        (["cost", "deit_tiny_patch16_224", "--with", "lfie"], "Did you mean 'life'?"),
        (["cost", "deit_tiny_patch16_224", "--with", "life@20"], "they run from 0 to 11"),
        (["cost", "deit_tiny_patch16_224", "--size", "225"], "Use 224 or 240"),
        (["cost", "mixer_s16_224", "--with", "life"], "MlpMixer has no attention"),
        (["cost", "resnet18", "--with", "life"], "ResNet is not a host"),
    ],
)
def test_a_mistake_ends_in_one_message_and_exit_code_2(arguments: list[str], message: str) -> None:
    done = glocal(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert not done.stdout
