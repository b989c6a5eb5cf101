"""Batches as PyG objects."""
