"""Every destination is ranked, known edges are left out, and pieces change nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from glt_lightning import rank_links
from glt_lightning.base import DataError, OptionError
from glt_lightning.inference import ranking


def test_as_ranking_one_source_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    source, destination = rng.normal(size=(40, 6)).astype(np.float32), rng.normal(size=(60, 6)).astype(np.float32)
    edges = np.unique(rng.integers(0, [[40], [60]], (2, 90)), axis=1)
    known = np.concatenate(
        [rng.integers(0, [[40], [60]], (2, 300)), edges[:, :5]], axis=1
    )  # some are to be predicted, too
    hits, ranks = [], []
    for s in np.unique(edges[0]):
        wanted = set(edges[1][edges[0] == s])
        order = [
            d for d in np.argsort(-(destination @ source[s])) if d in wanted or d not in set(known[1][known[0] == s])
        ]
        found = [i for i, d in enumerate(order[:10]) if d in wanted]
        hits.append(bool(found))
        ranks.append(1 / (1 + found[0]) if found else 0.0)
    expected = {"hits@10": np.mean(hits), "mrr@10": np.mean(ranks)}
    for at_once in (1 << 24, 7 * 60):
        monkeypatch.setattr(ranking, "_AT_ONCE", at_once)
        found = rank_links(source, destination, edges, known=known, metrics=["hits@10", "mrr@10"])
        assert found == pytest.approx(expected)
    # a decoder for which the direction counts
    weight = torch.from_numpy(rng.normal(size=(6, 6)).astype(np.float32))
    given = rank_links(source, destination, edges, score=lambda a, b: a @ weight @ b.T)
    assert given == rank_links((torch.from_numpy(source) @ weight).numpy(), destination, edges)


def test_refusals() -> None:
    rows = np.zeros((3, 2), dtype=np.float32)
    with pytest.raises(OptionError, match=r"metrics: expected NAME@K with a name of hits, .* got 'auc'"):
        rank_links(rows, rows, np.array([[0], [1]]), metrics=["auc"])
    with pytest.raises(DataError, match="edges: destination 3 has no embedding; there are rows 0 to 2"):
        rank_links(rows, rows, np.array([[0], [3]]))


def test_filtered_ranks_of_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers, so that scores are exact and many are equal; each edge is ranked without the other known ones."""
    rng = np.random.default_rng(0)
    source, destination = (rng.integers(-2, 3, (count, 3)).astype(np.float32) for count in (20, 30))
    known = np.unique(rng.integers(0, [[20], [30]], (2, 150)), axis=1)
    edges, facts, ranks = known[:, ::4], set(zip(*known.tolist(), strict=True)), []
    scores = source @ destination.T
    for s, d in edges.T.tolist():
        for negative in (
            [scores[s, n] for n in range(30) if (s, n) not in facts],
            [scores[n, d] for n in range(20) if (n, d) not in facts],
        ):
            above, not_below = (np.array(negative) > scores[s, d]).sum(), (np.array(negative) >= scores[s, d]).sum()
            ranks.append(1 + (above + not_below) / 2)
    expected = {"filtered_mrr": np.mean(1 / np.array(ranks)), "filtered_hits@3": np.mean(np.array(ranks) <= 3)}
    for at_once, block in ((1 << 24, 1 << 16), (70, 7)):
        monkeypatch.setattr(ranking, "_AT_ONCE", at_once)
        monkeypatch.setattr(ranking, "_DESTINATIONS", block)
        found = rank_links(source, destination, edges, known=known, metrics=list(expected))
        assert found == pytest.approx(expected, rel=1e-7)
    assert any(rank % 1 for rank in ranks)  # ties
    rows = np.full((3, 2), np.nan, np.float32)
    with pytest.raises(DataError, match="a score is not a number"):
        rank_links(rows, rows, np.array([[0], [1]]), metrics=["filtered_mrr"])
