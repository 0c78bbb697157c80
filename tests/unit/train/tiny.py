"""A run small enough to be repeated many times in a second or two."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from glocal.data.settings import PRESETS, DataSettings
from glocal.mechanisms import named
from glocal.train.settings import HostSettings, MixSettings, OptimSettings, Recipe

HOST = {"img_size": 8, "patch_size": 2, "embed_dim": 12, "depth": 2, "num_heads": 3}


def recipe(mechanisms: str = "", *, batch: int = 32, limit: int = 160, **changes: Any) -> Recipe:
    """Five steps an epoch of a ViT with some thousand parameters on digits."""
    made = Recipe(
        host=HostSettings("vit_tiny_patch16_224", arguments=dict(HOST)),
        data=DataSettings(batch_size=batch, limit=limit),
        epochs=2,
        mechanisms=named(mechanisms) if mechanisms else (),
        optim=OptimSettings(lr=1e-3),
        log_every=5,
        trackers=(),
    )
    return replace(made, **changes)


def restless(**changes: Any) -> Recipe:
    """As above with everything that draws at random: dropout, drop path, shifts, mixing; and a moving average."""
    base = recipe("local-ffn+cbs")
    host = replace(base.host, arguments={**HOST, "drop_rate": 0.1, "drop_path_rate": 0.1, "proj_drop_rate": 0.1})
    data = replace(base.data, augment=replace(PRESETS["deit_small"], padding=1))
    mix = MixSettings(mixup=0.8, cutmix=1.0, smoothing=0.1)
    return replace(base, host=host, data=data, mix=mix, ema=0.9, **changes)
