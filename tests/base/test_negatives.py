"""Options of negatives: PyG's ways of giving them, and what is refused."""

from types import SimpleNamespace

import numpy as np
import pytest

from glt_lightning.base import NegativeSampling, OptionError
from glt_lightning.sampling import LinkTask


@pytest.mark.parametrize(
    ("given", "mode", "amount"),
    [
        ("binary", "binary", 1),
        (("triplet", 2.0), "triplet", 2),
        ({"mode": "binary", "amount": 0.5}, "binary", 0.5),
        (SimpleNamespace(mode=SimpleNamespace(value="triplet"), amount=3, src_weight=None), "triplet", 3),
    ],
)
def test_every_way_of_pyg(given, mode, amount):
    options = NegativeSampling.of(given)
    assert (options.mode, options.amount, options.strict, options.sharing) == (mode, amount, True, "none")
    assert NegativeSampling.of(options) is options
    assert NegativeSampling.of(None) is None


@pytest.mark.parametrize(
    ("given", "positives", "negatives"),
    [({}, 7, 7), ({"amount": 0.1}, 30, 3), ({"amount": 0.5}, 5, 3), ({"mode": "triplet", "amount": 2}, 5, 10)]
    + [({"mode": "triplet", "sharing": s, "amount": n}, 5, c) for s, n, c in (("shared", 3, 3), ("in_batch", 1, 0))],
)
def test_number_of_negatives(given, positives, negatives):
    assert LinkTask.of(NegativeSampling(**given), loader="a", edge_type=0).count(positives) == negatives


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "tripple"}, "mode: expected binary, triplet; got 'tripple'. Did you mean triplet"),
        ({"amount": 0}, "amount: expected a number > 0, got 0"),
        ({"amount": float("nan")}, "amount: expected a number > 0, got nan"),
        ({"mode": "triplet", "amount": 1.5}, "amount: expected an integer with mode triplet, got 1.5"),
        ({"strict": 1}, "strict: expected true or false, got 1"),
        ({"sharing": "shared"}, "sharing: 'shared' needs mode triplet"),
        ({"sharing": "in_batch"}, "sharing: 'in_batch' needs mode triplet"),
        ({"mode": "triplet", "sharing": "in_batch", "amount": 2}, "amount: has no effect with sharing in_batch"),
        ({"mode": "triplet", "sharing": "in_batch", "dst_weight": [1]}, "dst_weight: has no effect with sharing"),
        ({"mode": "triplet", "src_weight": [1]}, "src_weight: has no effect with mode triplet"),
        ({"dst_weight": "degree^2"}, r"dst_weight: expected degree, degree\^0.75, a number for each node; got"),
        ({"dst_weight": [1.0, -2.0]}, "dst_weight: expected numbers >= 0, got -2.0 for the node 1"),
        ({"src_weight": [1.0, float("nan")]}, "src_weight: expected numbers >= 0, got nan for the node 1"),
        ({"src_weight": [0, 0]}, "src_weight: all 2 weights are 0"),
        ({"dst_weight": [[1]]}, r"dst_weight: expected numbers \[N\].*got int64 \[1, 1\]"),
        ({"dst_weight": [[1], [1, 2]]}, "dst_weight: expected numbers"),
        (("triplet", "many"), "amount: expected a number > 0, got 'many'"),
        ({"weight": [1]}, "neg_sampling: expected any of mode, amount"),
        (3, "neg_sampling: expected NegativeSampling or a mapping"),
    ],
)
def test_what_is_refused(given, message):
    with pytest.raises(OptionError, match=message):
        NegativeSampling.of(given)


def test_weights_are_a_copy():
    weights = np.ones(3)
    options = NegativeSampling(dst_weight=weights)
    weights[:] = -1
    assert options.dst_weight.tolist() == [1, 1, 1]
