"""The k best destinations by blocks are those of a sort of all scores, ties in the order of ids, without known ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from glt_lightning.base import DataError, OptionError
from glt_lightning.inference import KnownPairs, TopK, top_k


def products(rows: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    return rows @ others.T


def brute_force(scores: np.ndarray, known: set[tuple[int, int]], k: int) -> list[list[tuple[int, float]]]:
    """By a sort of all destinations of each source."""
    found = []
    for s, row in enumerate(scores):
        ranked = sorted((-float(score), d) for d, score in enumerate(row) if (s, d) not in known)[:k]
        found.append([(d, -score) for score, d in ranked])
    return found


def listed(best: Any) -> list[list[tuple[int, float]]]:
    rows = zip(best.ids.tolist(), best.scores.tolist(), strict=True)
    return [[(d, s) for d, s in zip(*row, strict=True) if d >= 0] for row in rows]


@pytest.mark.parametrize("at_once", [1, 7, 50, 1 << 16])
@pytest.mark.parametrize("values", ["ties", "floats"])
def test_equal_to_a_sort(monkeypatch: pytest.MonkeyPatch, at_once: int, values: str) -> None:
    """Products of small integers are exact, in any order, and often equal; both signs and zeros of both kinds occur."""
    monkeypatch.setattr(top_k, "_ROWS", at_once)
    rng = np.random.default_rng(0)
    draw = (lambda n: rng.integers(-2, 3, (n, 4))) if values == "ties" else (lambda n: rng.normal(size=(n, 4)).round(1))
    sources, destinations = (torch.from_numpy(draw(n).astype(np.float64)).float() for n in (13, 61))
    sources[3] = -0.0
    pairs = np.stack([rng.integers(0, 13, 200), rng.integers(0, 61, 200)])
    pairs = np.concatenate([pairs, np.stack([np.full(58, 5), np.arange(58)])], axis=1)  # three remain for one source
    known = KnownPairs([pairs[:, :20], pairs[:, 20:]]).of(np.arange(13))
    scores = products(sources, destinations)
    for k in (1, 10, 61):
        best = TopK(lambda ids: destinations[ids], 61, products, k).of(sources, known)
        assert best.ids.shape == (13, k)
        if values == "ties" or at_once >= 61:  # blocks of floats round differently
            assert listed(best) == brute_force(scores.numpy(), set(map(tuple, pairs.T.tolist())), k)
        assert not {(s, d) for s, row in enumerate(listed(best)) for d, _ in row} & set(map(tuple, pairs.T.tolist()))
    assert (best.ids[5] >= 0).sum() <= 3


def test_known_pairs_of_some_sources() -> None:
    pairs = np.array([[5, 2, 5, 9, 5, 2], [1, 7, 0, 3, 1, 7]])
    known = KnownPairs([pairs])
    assert len(known) == 4
    assert known.of(np.array([9, 4, 5])).tolist() == [[0, 2, 2], [3, 0, 1]]
    assert known.of(np.array([], np.int64)).shape == (2, 0)
    assert KnownPairs([]).of(np.array([1])).shape == (2, 0)


def test_infinite_scores_have_an_order_too() -> None:
    rows = torch.tensor([[float("inf"), float("-inf"), 0.0, -1e-40, 1e-40]])
    best = TopK(lambda ids: torch.from_numpy(ids), 5, lambda source, ids: rows[:, ids], 5).of(
        rows, np.zeros((2, 0), np.int64)
    )
    assert best.ids.tolist() == [[0, 4, 2, 3, 1]]
    assert best.scores[0, 0] == float("inf")


def test_mistakes() -> None:
    rows = torch.full((2, 3), float("nan"))
    with pytest.raises(DataError, match="a score is not a number"):
        TopK(lambda ids: rows[: len(ids)], 2, products, 1).of(rows, np.zeros((2, 0), np.int64))
    for k in (0, 3, 1.5):
        with pytest.raises(OptionError, match="k: expected 1 to 2, the number of destinations"):
            TopK(lambda ids: rows, 2, products, k)  # type: ignore[arg-type]


def test_a_source_that_no_key_holds() -> None:
    assert len(KnownPairs([np.array([[(1 << 31) - 1], [7]])])) == 1
    with pytest.raises(DataError, match="ids of sources are at most 2147483647"):
        KnownPairs([np.array([[1 << 31], [7]])])
