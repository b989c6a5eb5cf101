"""Graphs and partitions that other systems hold or have written."""
