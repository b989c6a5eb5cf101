"""Positions of entries that lie in lists, one list after the other."""

from __future__ import annotations

import numpy as np


def spread(begin: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """int64 [sum of counts]: ``counts[i]`` numbers from ``begin[i]`` on, one range after the other."""
    ends = np.cumsum(counts)
    found: np.ndarray = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begin - (ends - counts), counts)
    return found


def entries_of(lists: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """int64: where the entries of some lists are, one list after the other. lists: int [n], which; one may come several times.
    counts: int [L], the lengths of all lists, which lie one after the other."""
    begin = np.cumsum(counts) - counts
    return spread(begin[lists], counts[lists])
