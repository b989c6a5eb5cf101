"""``python -m lightning plan``: what a run will take, before it starts."""
