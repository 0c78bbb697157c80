"""The mechanisms: one idea per file, its plain module and its frozen config; and the names people write for them."""

from glocal.mechanisms.context import ContextBroadcast
from glocal.mechanisms.conv_stem import ConvStem
from glocal.mechanisms.early_mlp import EarlyMLP
from glocal.mechanisms.life import LIFE
from glocal.mechanisms.local_ffn import LocalFFN
from glocal.mechanisms.names import build, describe, named, spelled
from glocal.mechanisms.squeeze_context import SqueezeContext
from glocal.mechanisms.token_merge import DTM
from glocal.mechanisms.uniform_head import UniformHead

__all__ = [
    "DTM",
    "LIFE",
    "ContextBroadcast",
    "ConvStem",
    "EarlyMLP",
    "LocalFFN",
    "SqueezeContext",
    "UniformHead",
    "build",
    "describe",
    "named",
    "spelled",
]
