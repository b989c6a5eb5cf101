"""Draws of a user's code over a graph that are the same in every run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def fixed_randomness(seed: int = 0) -> Iterator[None]:
    """Draws of torch, numpy and Python in the block are the same each time, and those after it as if it had not been.

    A graph that is made with random numbers, such as a random split, would be another in every run and on every rank.
    """
    import torch

    python, array = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(array)
