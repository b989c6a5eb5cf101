"""Draws are uniform. Equality with a reference proves nothing if the reference is biased."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import chisquare

from glt_lightning.base import DrawOptions
from glt_lightning.kernels import EdgeTypeArrays, ExcludedEntries, GraphView, KHopOp, RowDraw, Trees
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


@pytest.mark.diagonal
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


def test_uniform_in_a_window_without_excluded_entries():
    """Of a row with times 0 to 9 those from 2 to 6, without the one at 3: each pair of four, once in six."""
    times, row = np.arange(10), np.array([10])
    lists = EdgeTypeArrays(np.array([0] * 11 + [10]), np.arange(10, dtype=np.int32), times=times)
    view = GraphView(np.array([0, 11]), [lists], [np.arange(11, dtype=np.int32)], [5], [0], [0], np.array([[10]]))
    trees = Trees({0: np.zeros(1, np.int32)}, until=np.array([6]), since=np.array([2]))
    excluded = ExcludedEntries.find(view, 0, row, np.array([3]))
    pairs: Counter[tuple[int, ...]] = Counter()
    for key in range(SAMPLES):
        draw = RowDraw(view, 0, row, 2, key, 0, excluded=excluded, trees=trees)
        pairs[tuple(draw.picks()[1].tolist())] += 1
    assert set(pairs) == set(combinations([2, 4, 5, 6], 2))
    assert chisquare(list(pairs.values())).pvalue > 1e-4
    for fanout, found in ((-1, [2, 4, 5, 6]), (4, [2, 4, 5, 6])):
        assert RowDraw(view, 0, row, fanout, 1, 0, excluded=excluded, trees=trees).picks()[1].tolist() == found
    last = RowDraw(view, 0, row, 3, 1, 0, DrawOptions(timed=True, last=True), excluded, trees)
    assert last.picks()[1].tolist() == [4, 5, 6]
