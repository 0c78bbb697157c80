"""Lets `python -m glocal` do what `glocal` does, for launchers such as accelerate and torchrun."""

from glocal.cli import main

main()
