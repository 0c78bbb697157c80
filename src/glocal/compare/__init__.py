"""Compare: which mechanism helps on these images, and at what cost."""
