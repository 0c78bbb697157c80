"""Start a host from the weights of another run: a classifier's, or another dense model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

from glocal.errors import GlocalError


def host_weights(host: nn.Module, path: Path) -> list[str]:
    """Fill a host from a run folder or a saved model, and name what stayed as it was."""
    file = path / "model.safetensors" if path.is_dir() else path
    try:
        stored = load_file(file)
    except (OSError, SafetensorError) as error:
        raise GlocalError(f"{file} holds no weights to start from: {error}") from None
    start = next((name.split("maps.host.")[0] + "maps.host." for name in stored if "maps.host." in name), "")
    theirs = {name.removeprefix(start): each for name, each in stored.items() if name.startswith(start)}
    own = host.state_dict()
    fitting = {name: each for name, each in _resized(host, own, theirs).items() if _fits(own.get(name), each)}
    if 2 * len(fitting) < len(own):
        raise GlocalError(
            f"{file} fits {len(fitting)} of the {len(own)} tensors of {type(host).__name__}. "
            f"Is it the same host with the same mechanisms?"
        )
    host.load_state_dict(own | fitting)
    return [name for name in own if name not in fitting]


def _fits(own: Tensor | None, other: Tensor) -> bool:
    return own is not None and own.shape == other.shape


def _resized(host: nn.Module, own: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Bring a plain host's positions to its number of patches."""
    ours, table = own.get("pos_embed"), theirs.get("pos_embed")
    embed: Any = getattr(host, "patch_embed", None)
    grid = getattr(embed, "grid_size", None)
    if ours is None or table is None or grid is None or ours.shape == table.shape or ours.ndim != 3:
        return theirs
    prefix = ours.shape[1] - grid[0] * grid[1]
    return theirs | {"pos_embed": resample_abs_pos_embed(table, list(grid), num_prefix_tokens=prefix)}
