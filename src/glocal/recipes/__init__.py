"""Recipes: one readable file in, one folder out."""
