"""Partition folders as memory-mapped arrays."""
