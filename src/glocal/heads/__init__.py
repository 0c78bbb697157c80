"""Heads: what turns a host into a detector or a segmenter."""
