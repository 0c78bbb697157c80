"""Training: settings, the loop, and what a run must never lose."""
