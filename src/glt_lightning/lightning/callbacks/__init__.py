"""Callbacks: sampling metrics, checkpoints, predictions."""
