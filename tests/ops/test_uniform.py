"""Draws are uniform. Equality with a reference proves nothing if the reference is biased."""

import numpy as np
import pytest
from scipy.stats import chisquare

from glt_lightning.ops.khop import KHopOp
from glt_lightning.options import DrawOptions
from tests.helpers.graphs import TypedGraph, cut

SAMPLES = 6000


def inclusion_counts(degree: int, fanout: int, replace: bool) -> tuple[np.ndarray, np.ndarray]:
    """How often each neighbour, and each pair of the first and another neighbour, is picked."""
    graph = TypedGraph.random(np.random.default_rng(0))
    graph.num_nodes = [degree + 1]
    graph.edges = [np.stack([np.arange(degree), np.full(degree, degree)])]
    pieces = cut(graph, 1, np.random.default_rng(2))
    op = KHopOp(pieces.view, [[fanout]], DrawOptions(replace=replace))
    single, pair = np.zeros(degree), np.zeros(degree)
    seeds = pieces.gid_of[0][[degree]]
    for key in range(SAMPLES):
        found = op({0: seeds}, key)
        picked = found.uid[0][found.src[0]]
        np.add.at(single, picked, 1)
        if 0 in picked:
            np.add.at(pair, picked, 1)
    return single, pair[1:]


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(("degree", "fanout"), [(4, 2), (4, 3), (10, 9), (64, 10), (65, 10), (200, 15), (3000, 5)])
def test_inclusion_probabilities(degree, fanout, replace):
    single, pair = inclusion_counts(degree, fanout, replace)
    assert single.sum() == SAMPLES * fanout
    groups = np.add.reduceat(single, np.arange(0, degree, max(1, degree // 50)))
    sizes = np.add.reduceat(np.ones(degree), np.arange(0, degree, max(1, degree // 50)))
    # without replacement counts vary less than multinomial ones do, so the test errs on the safe side
    assert chisquare(groups, sizes * single.sum() / degree).pvalue > 1e-4
    if not replace and degree <= 10:
        assert chisquare(pair).pvalue > 1e-4
