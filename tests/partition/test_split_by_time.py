"""Splits of links by time: the latest edges are predicted, and no message passes over an edge that is as late as one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.base import EDGE, DataError, GraphSchema, OptionError
from glt_lightning.partition import ArraySource, hold_out_edges
from glt_lightning.partition.edge_splits import columns

BUYS, BOUGHT = ("user", "buys", "item"), ("item", "rev_buys", "user")
GIVEN = {"num_val": 0.2, "num_test": 0.3, "time": "when"}


def edges(seed: int, count: int = 300) -> np.ndarray:
    """Between few nodes: many edges are parallel, at other times, and some are loops."""
    return np.random.default_rng(seed).integers(0, 12, (2, count))


def times(seed: int, count: int = 300) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 90, count).astype(np.int32)


def held_out(source: ArraySource, name: str, folder: Path, **options: Any) -> Any:
    return hold_out_edges(source, {name: GIVEN}, folder=folder, **options)


def latest(when: np.ndarray, known: np.ndarray) -> tuple[int, int]:
    """The times from which edges are validation and test."""
    order = np.sort(when[known])
    return int(order[len(order) - round(0.2 * len(order)) - round(0.3 * len(order))]), int(
        order[len(order) - round(0.3 * len(order))]
    )


@pytest.mark.parametrize("at_test", [False, True])
@pytest.mark.parametrize("size", [1 << 20, 7])
def test_one_node_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, at_test: bool) -> None:
    monkeypatch.setattr(columns, "CHUNK", size)
    index, when = edges(0), times(1)
    source = ArraySource("g", "", GraphSchema.single(), {"node": 12}, {EDGE: index}, edge={EDGE: {"when": when}})
    links = held_out(source, "node__to__node", tmp_path, val_edges_at_test=at_test)
    known = index[0] != index[1]
    val, test = latest(when, known)
    which = {"train": when < val, "val": (when >= val) & (when < test), "test": when >= test}
    for name, mask in which.items():
        split = links.edge_splits[EDGE][name]
        np.testing.assert_array_equal(split.edge, index[:, mask & known])
        np.testing.assert_array_equal(split.time, when[mask & known])
    stored = when < (test if at_test else val)  # with the loops of then
    kept = links.edges(EDGE)
    np.testing.assert_array_equal(kept.columns, np.flatnonzero(stored))
    assert (when[~known] >= val).any()
    attrs = links.edge_attrs(EDGE)
    np.testing.assert_array_equal(attrs["when"][:], when[stored])
    if at_test:
        np.testing.assert_array_equal(attrs["in_training"], when[stored] < val)
    del links, kept, attrs
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("timed", [True, False])
def test_the_reverse_edge_type(tmp_path: Path, timed: bool) -> None:
    """Its edges are left out by their own times; without times, all of pairs of which an edge is held out."""
    index, when, back, then = edges(0, 60), times(1, 60), edges(2, 80), times(3, 80)
    source = ArraySource(
        "shop",
        "",
        GraphSchema(("item", "user"), (BOUGHT, BUYS)),
        {"user": 12, "item": 12},
        {BUYS: index, BOUGHT: back},
        edge={BUYS: {"when": when}, BOUGHT: {"when": then} if timed else {}},
    )
    links = held_out(source, "user__buys__item", tmp_path)
    val, _ = latest(when, np.ones(60, bool))  # ends of two types are no loops
    later = {*map(tuple, index[:, when >= val].T.tolist())}
    expected = then < val if timed else np.array([(u, i) not in later for i, u in back.T.tolist()])
    assert 0 < np.count_nonzero(expected) < 80
    np.testing.assert_array_equal(links.edges(BOUGHT).columns, np.flatnonzero(expected))
    np.testing.assert_array_equal(links.edges(BUYS).columns, np.flatnonzero(when < val))


def test_times_make_another_folder() -> None:
    source = ArraySource(
        "g",
        "",
        GraphSchema.single(),
        {"node": 12},
        {EDGE: edges(0)},
        edge={EDGE: {"when": times(1), "then": times(2)}},
    )
    hashes = [
        hold_out_edges(source, {"node__to__node": {"num_test": 0.3} | more}).edge_splits_hash
        for more in ({}, {"time": "when"}, {"time": "then"})
    ]
    assert len({*hashes}) == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"time": "then"},
            r"links.edge_splits: time: expected an edge attribute of integers; got 'then', .* is when\.",
        ),
        ({"num_test": 300, "time": "when"}, r"0 and 300 leave no training edge of \d+ edges that can be in a split"),
        (
            {"seed": 1, "time": "when"},
            r"expected any of train, val, test, or of num_val, num_test, neg_sampling_ratio, seed, or of num_val, num_test, time",
        ),
        ({"num_val": 0.9, "time": "same"}, r"time: same: no edge is earlier than those of val and test"),
    ],
)
def test_refusals(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    attrs = {"when": times(1)} | ({"same": np.zeros(300, np.int64)} if given["time"] == "same" else {})
    source = ArraySource("g", "", GraphSchema.single(), {"node": 12}, {EDGE: edges(0)}, edge={EDGE: attrs})
    with pytest.raises((DataError, OptionError), match=said):
        _ = hold_out_edges(source, {"node__to__node": given}, folder=tmp_path).edge_splits


def test_times_of_reverse_edges_are_times(tmp_path: Path) -> None:
    index, when = edges(0), times(1)
    source = ArraySource(
        "g",
        "",
        GraphSchema(("item", "user"), (BUYS, BOUGHT)),
        {"item": 12, "user": 12},
        {BUYS: index, BOUGHT: index[::-1]},
        edge={BUYS: {"when": when}, BOUGHT: {"when": when[:, None].astype(float)}},
    )
    with pytest.raises(DataError, match="expected an edge attribute of integers; got 'when', and there is none"):
        _ = held_out(source, "user__buys__item", tmp_path).edge_splits
