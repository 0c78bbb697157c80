"""Measurements: what a model costs, how fast it runs, how well it does."""
