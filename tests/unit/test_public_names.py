"""A public name leaves on purpose or not at all; importing glocal stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import glocal


def test_the_public_names_are_those_listed() -> None:
    listed = Path(__file__).with_name("public_names.txt").read_text().split()
    assert sorted(set(glocal.__all__)) == listed


@pytest.mark.parametrize("name", glocal.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(glocal, name) is not None


def test_a_function_is_not_hidden_by_the_module_it_lives_in() -> None:
    code = "import glocal.enhance, glocal.zoo, glocal; assert callable(glocal.enhance)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("command", ["import glocal", "import glocal.cli"])
def test_importing_loads_nothing_heavy(command: str) -> None:
    code = f"{command}, sys; print(*[m for m in sys.modules])".replace("import ", "import sys, ", 1)
    loaded = set(
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    )
    heavy = {
        "torch",
        "timm",
        "torchvision",
        "transformers",
        "gradio",
        "accelerate",
        "matplotlib",
        "sklearn",
        "torchmetrics",
    }
    assert not heavy & loaded


def test_enhancing_loads_no_web_framework_and_no_trainer() -> None:
    code = (
        "import sys, glocal; from timm.models.vision_transformer import VisionTransformer as V;"
        "glocal.enhance(V(img_size=32, patch_size=8, embed_dim=24, depth=1, num_heads=2), glocal.LIFE());"
        "print(*sys.modules)"
    )
    loaded = set(
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    )
    assert not {"transformers", "gradio", "accelerate", "matplotlib", "sklearn", "torchmetrics"} & loaded
