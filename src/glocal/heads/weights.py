"""Start a host from the weights of another run: a classifier's, or another dense model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from glocal.errors import GlocalError
from glocal.models.pyramid import Pyramid
from glocal.store import load, read_recipe


def host_weights(host: nn.Module, path: Path) -> list[str]:
    """Fill a host from a run folder or a saved model, positions resampled, and name what stayed as it was."""
    file = path / "model.safetensors" if path.is_dir() else path
    try:
        theirs = _classifier(host, file) or _dense(file)
    except (OSError, SafetensorError) as error:
        raise GlocalError(f"{file} holds no weights to start from: {error}") from None
    own = host.state_dict()
    fitting = {name: each for name, each in theirs.items() if name in own and own[name].shape == each.shape}
    if 2 * len(fitting) < len(own):
        raise GlocalError(
            f"{file} fits {len(fitting)} of the {len(own)} tensors of {type(host).__name__}. "
            f"Is it the same host with the same mechanisms?"
        )
    host.load_state_dict(own | fitting)
    return [name for name in own if name not in fitting]


def _classifier(host: nn.Module, file: Path) -> dict[str, Tensor] | None:
    """Rebuild a saved classifier and let it resample its own positions to the host's image size."""
    if read_recipe(file)["name"] is None:
        return None
    model = load(file)
    size, resize = _image_size(host), getattr(model, "set_input_size", None)
    if size is not None and resize is not None and size != _image_size(model):
        resize(img_size=size)
    return model.state_dict()


def _dense(file: Path) -> dict[str, Tensor]:
    stored = load_file(file)
    start = next((name.split("maps.host.")[0] + "maps.host." for name in stored if "maps.host." in name), "")
    return {name.removeprefix(start): each for name, each in stored.items() if name.startswith(start)}


def _image_size(model: nn.Module) -> tuple[int, int] | None:
    if isinstance(model, Pyramid):
        height, width = model.stages[0].grid  # pyright: ignore[reportGeneralTypeIssues]
        return 4 * int(height), 4 * int(width)
    embed: Any = getattr(model, "patch_embed", None)
    return getattr(embed, "img_size", None)
