"""Pickers of neighbours, good and bad."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np

from glt_lightning.kernels import pick_uniform


class Uniform:
    """The rule of the built-in sampler."""

    def pick(self, rows, fanout, stream):
        counts = rows.degree if fanout < 0 else np.minimum(rows.degree, fanout)
        return counts, pick_uniform(rows.degree, counts, stream)


@dataclass(frozen=True)
class Heaviest:
    """The entries of the highest value of an attribute, the first of equal ones, where edges have it; else the first."""

    attr: str = "edge_attr"
    version = 2

    def pick(self, rows, fanout, stream):
        counts = rows.degree if fanout < 0 else np.minimum(rows.degree, fanout)
        row_of = np.repeat(np.arange(len(rows)), rows.degree)
        given = rows.attrs[self.attr] if self.attr in rows.attrs else 0 * row_of
        values = given if given.ndim == 1 else given[:, 0]
        order = np.lexsort((-values, row_of))
        ranked = np.arange(len(order)) - rows.begin[row_of]
        return counts, (order - rows.begin[row_of])[ranked < counts[row_of]]


class Counting:
    """Picks other entries in every call."""

    def __init__(self):
        self.calls = 0

    def pick(self, rows, fanout, stream):
        self.calls += 1
        counts = np.minimum(rows.degree, 1)
        return counts, (self.calls % np.maximum(rows.degree, 1))[counts > 0]


class Crowd:
    """A row depends on the other rows of the call."""

    def pick(self, rows, fanout, stream):
        counts = np.minimum(rows.degree, 1)
        return counts, (rows.degree.sum() % np.maximum(rows.degree, 1))[counts > 0]


class OfTheProcess:
    """The same in every call, and another in every process."""

    def pick(self, rows, fanout, stream):
        counts = np.minimum(rows.degree, 1)
        return counts, (os.getpid() % np.maximum(rows.degree, 1))[counts > 0]


@dataclass
class Given:
    """Gives what it was made with."""

    counts: list = field(default_factory=list)
    positions: list = field(default_factory=list)

    def pick(self, rows, fanout, stream):
        return np.array(self.counts), np.array(self.positions)


class Failing:
    def pick(self, rows, fanout, stream):
        return rows.attrs["no_such"], stream
