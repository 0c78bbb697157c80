"""Lets `python -m glocal.cli` do what `glocal` does."""

from glocal.cli import main

main()
