"""The authors' released checkpoints, recognised by their names and shapes and loaded tensor by tensor."""

from glocal.released.catalogue import RELEASES, Release
from glocal.released.load import load_released

__all__ = ["RELEASES", "Release", "load_released"]
