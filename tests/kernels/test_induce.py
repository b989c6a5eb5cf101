"""induce against the reference, and what it refuses."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from glt_lightning.base import DataError, PartitionError
from glt_lightning.kernels import Among
from tests.helpers.examples import examples
from tests.helpers.graphs import HETERO, TypedGraph, cut
from tests.kernels.test_has_edges import one_type
from tests.reference import ops as reference


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    parts=st.integers(1, 4),
    threads=st.sampled_from([1, 3]),
    dtype=st.sampled_from([np.int32, np.int64]),
    most=st.sampled_from([1, 5, 1 << 20]),
)
def test_as_the_reference(seed, parts, threads, dtype, most):
    """Whole, or in pieces of at most so many edges; by weight without those of weight 0."""
    rng = np.random.default_rng(seed)
    graph = TypedGraph.random(rng, HETERO)
    graph = graph.weigh(rng) if seed % 2 else graph
    pieces = cut(graph, parts, rng, dtype)
    for r, each in enumerate(graph.reference()):
        rows = rng.integers(0, graph.num_nodes[each.destination], 400)
        mine = np.flatnonzero(rng.random(graph.num_nodes[each.source]) < rng.choice([0.0, 0.3, 1.0]))
        mine = mine[np.argsort(pieces.gid_of[each.source][mine])]  # the kernel has them by gid
        members = torch.from_numpy(np.sort(mine))
        counts, ranks, entries = reference.induce(each.indptr, each.neighbors, torch.from_numpy(rows), members)
        sums = each.sums
        if sums is not None:
            before = torch.where(torch.isin(entries, each.indptr), 0, sums[(entries - 1).clamp(min=0)])
            kept = sums[entries] > before
            of = torch.repeat_interleave(torch.arange(len(rows)), counts)
            counts, ranks, entries = torch.bincount(of[kept], minlength=len(rows)), ranks[kept], entries[kept]
        gids = pieces.gid_of[each.destination][rows], pieces.gid_of[each.source][mine]
        among = Among.of(pieces.view, r, *gids, None)
        found, done = [], 0
        while done < len(rows):
            piece = replace(among, rows=among.rows[done:]).find_first(pieces.view, threads=threads, most=most)
            assert piece.counts.sum() <= max(most, piece.counts[0])
            found.append(piece)
            done += len(piece.counts)
        whole = among.find(pieces.view, threads=threads)
        for name in ("counts", "neighbors", "edge_rows"):
            got = getattr(whole, name)
            assert got.tolist() == np.concatenate([getattr(piece, name) for piece in found]).tolist()
        assert whole.counts.tolist() == counts.tolist()
        assert mine[whole.neighbors].tolist() == members[ranks].tolist()
        arrays = among.to_arrays()
        assert Among.from_arrays(pieces.view, r, arrays, None).members.tolist() == gids[1].tolist()
        assert ("bitmap" in arrays) == (among.count // 8 < gids[0].itemsize * len(mine))


def test_edge_rows_are_those_of_the_entries():
    graph = one_type([0, 3, 3, 5, 5], [1, 2, 1, 3, 0])
    found = Among.of(graph, 0, np.array([2, 0, 1, 0]), np.array([0, 1]), None).find(graph)
    assert (found.counts.tolist(), found.neighbors.tolist(), found.edge_rows.tolist()) == (
        [1, 2, 0, 2],
        [0, 1, 1, 1, 1],
        [4, 0, 2, 0, 2],
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_wrong_is_said(threads):
    graph = one_type([0, 1, 9], [0, 1])
    every = Among.of(graph, 0, np.zeros(5000, np.int64), np.array([0, 1]), None)
    with pytest.raises(PartitionError, match="edge type 0 node 1 points to 1:9, outside its array"):
        replace(every, rows=np.array([0, 1])).find_first(graph, threads=threads)
    rows = np.zeros(5000, np.int64)
    rows[4321] = 2
    with pytest.raises(DataError, match="id 2 at position 4321 is not in the graph, or its part is not mapped"):
        replace(every, rows=rows).find_first(graph, threads=threads)
    with pytest.raises(DataError, match="members: expected ascending ids from 0 to 1, each once; got 0 at position 1"):
        replace(every, members=np.array([1, 0])).find_first(graph, threads=threads)
    hub = one_type([0, 4, 5], [0, 1, 1, 0, 1])
    assert len(Among.of(hub, 0, np.arange(2), np.arange(2), 4).find_first(hub, threads=threads).neighbors) == 5
    with pytest.raises(DataError, match=r"induced_limit: node 0 .* has 4 edges of edge type 0, more than 3. Raise"):
        Among.of(hub, 0, np.arange(2), np.arange(2), 3).find_first(hub, threads=threads)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self")
@pytest.mark.parametrize("threads", [1, 4])
def test_many_long_rows_take_the_memory_of_the_answer(threads) -> None:
    """2000 times a node of 100,000 edges: 2.4 GB, were all of them collected before the answer is cut."""
    hub = 100_000
    graph = one_type([0, *[hub] * hub], np.arange(hub))
    among = Among.of(graph, 0, np.zeros(2000, np.int64), np.arange(hub), None)
    Path("/proc/self/clear_refs").write_text("5")
    before = status_bytes("VmRSS")
    found = among.find_first(graph, threads=threads)
    assert found.counts.tolist() == [hub] * 10
    assert status_bytes("VmHWM") - before < 64 << 20


def status_bytes(name: str) -> int:
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1]) << 10
