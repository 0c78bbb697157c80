"""How a compiled model hands queries, keys, values and output to attention's backward pass; no GPU is needed.

python benchmarks/attention_strides.py host life local-ffn life+local-ffn+cb

For each variant, with inductor's layout optimisation and without, the distinct calls in the order of the backward pass
(the last block first) and how many blocks make them. cuDNN's graphs are found again by the strides of q, k and v alone:
two lines that agree in these and differ in the output's take each other's.
"""

from __future__ import annotations

import ast
import re
import sys
from itertools import groupby

import torch
from without_gpu import training_code

import glocal
from glocal.kernels import dispatch

NAMES = ("gradient", "q", "k", "v", "output")
_SHAPE = r"\([^)]*\)"


def main() -> None:
    """Print the strides, variant by variant."""
    print(f"torch {torch.__version__}; DeiT-T, 32 pixels, patch 4, batch 256, bf16; by image, head, token, channel")
    for variant in sys.argv[1:] or ["host", "life"]:
        for moved in (True, False):
            mechanisms = () if variant == "host" else glocal.named(variant)
            model = glocal.create_model("deit_tiny_patch16_224", *mechanisms, img_size=32, patch_size=4).train()
            with dispatch.plain():
                code = training_code(model, torch.empty(256, 3, 32, 32), layout_optimization=moved)[1]
            print(f"\n{variant}, layout optimisation {'on' if moved else 'off'}")
            for call, times in groupby(strides(code)):
                told = "  ".join(f"{name} {each}" for name, each in zip(NAMES, call, strict=True))
                print(f"{len(list(times)):3} x  {told}")


def strides(code: str) -> list[tuple[str, ...]]:
    """Find the strides of the first five arguments of each call of attention's backward pass."""
    laid: dict[str, str] = {}
    calls: list[tuple[str, ...]] = []
    for line in code.splitlines():
        if found := re.search(rf"assert_size_stride\((\w+), {_SHAPE}, ({_SHAPE})", line):
            laid[found[1]] = found[2]
        if found := re.search(r"assert_size_stride_grouped\(\(([^)]*)\), (\(.*\)), '", line):
            _, each = ast.literal_eval(found[2])
            laid |= dict(zip(found[1].split(", "), map(str, each), strict=False))
        if found := re.search(
            rf"(\w+) = (?:empty_strided_cuda|reinterpret_tensor)\((?:\w+, )?{_SHAPE}, ({_SHAPE})", line
        ):
            laid[found[1]] = found[2]
        if found := re.search(r"(\w+) = (\w+); del ", line):  # memory that is used again
            laid[found[1]] = laid.get(found[2], "")
        if "attention_backward.default(" in line:
            given = re.findall(
                rf"reinterpret_tensor\(\w+, {_SHAPE}, ({_SHAPE}), \d+\)|(\w+)", line.split(".default(")[1]
            )
            calls.append(tuple(strides or laid.get(name, "?") for strides, name in given[: len(NAMES)]))
    return calls


if __name__ == "__main__":
    main()
