"""Data: where images come from, how they are augmented, and how batches are made so that any one can be made again."""
