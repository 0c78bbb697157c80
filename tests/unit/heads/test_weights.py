"""A dense host starts from a classifier, whatever size that was trained at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from glocal import GlocalError, create_model, named, save
from glocal.heads.weights import host_weights

CASES: list[tuple[str, dict[str, Any], str]] = [
    ("deit_tiny_patch16_224", {"depth": 2, "embed_dim": 24, "num_heads": 3}, "life"),
    ("lit_tiny", {"depths": (1, 1, 1, 1), "dims": (16, 24, 32, 48), "heads": (1, 1, 2, 2)}, ""),
    ("lit_small", {"depths": (1, 1, 1, 1), "dims": (12, 24, 48, 96)}, ""),
    ("swinv2_tiny_window8_256", {"embed_dim": 24, "depths": (1, 1, 1, 1), "num_heads": (1, 2, 4, 8)}, "life"),
]


@pytest.mark.parametrize(("name", "arguments", "variant"), CASES, ids=[case[0] for case in CASES])
def test_a_host_takes_a_classifiers_weights_at_another_size(
    name: str, arguments: dict[str, Any], variant: str, tmp_path: Path
) -> None:
    mechanisms = named(variant) if variant else ()
    small, large = (64, 96) if "swin" not in name else (64, 128)
    old = create_model(name, *mechanisms, num_classes=10, img_size=small, **arguments)
    save(old, tmp_path / "model.safetensors")
    host = create_model(name, *mechanisms, num_classes=0, img_size=large, **arguments)
    left = host_weights(host, tmp_path)
    assert not [each for each in left if "index" not in each and "coords" not in each], left
    ours, theirs = host.state_dict(), old.state_dict()
    same = [key for key in ours if key in theirs and ours[key].shape == theirs[key].shape]
    assert len(same) > 10
    assert all(torch.equal(ours[key], theirs[key]) for key in same)
    moved = [key for key in ours if key in theirs and ours[key].shape != theirs[key].shape]
    assert all(ours[key].std() > 0.25 * theirs[key].std() for key in moved if ours[key].is_floating_point())


def test_what_is_no_run_of_this_host_is_refused(tmp_path: Path) -> None:
    host = create_model(CASES[0][0], num_classes=0, **CASES[0][1])
    with pytest.raises(GlocalError, match="is not a file"):
        host_weights(host, tmp_path / "nothing.safetensors")
    save(create_model(CASES[1][0], num_classes=3, **CASES[1][1]), tmp_path / "model.safetensors")
    with pytest.raises(GlocalError, match="Is it the same host"):
        host_weights(host, tmp_path)
