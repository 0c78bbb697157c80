"""Operators with a fast path and a plain PyTorch reference; dispatch happens here and nowhere else."""
