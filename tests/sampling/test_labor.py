"""LABOR: the laws of its picks, and what it cannot be asked for. That every source and producer gives the picks of the reference
is proved where that is proved of other draws (test_typed_seeds.py, tests/kernels/test_khop_equals_reference.py)."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import replace
from itertools import combinations, pairwise, permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch_geometric.data import Data

from glt_lightning.base import DataError, DrawOptions, GpuBudgets, GraphSchema, OptionError, SamplingOptions
from glt_lightning.graph import BatchArrays, DeviceStore, LocalPartition
from glt_lightning.kernels import Kernels
from glt_lightning.loader import LinkSpec, LoaderSpec, Session
from glt_lightning.sampling import SamplerConfig, k_hop, neighbor_source
from glt_lightning.workers.producer import on_gpu
from tests.helpers.contents import contents
from tests.helpers.partitions import gids_of, partitioned, small_hetero
from tests.reference import ops as reference


def copies(
    folder: Path, rows: list[list[int]], count: int, weights: list[float] | None = None, parts: int = 1
) -> LocalPartition:
    """The same small graph many times over: rows have neighbours out of a copy's own ones, 0 to their highest number. The nodes
    that have rows come last, copy after copy."""
    size = 1 + max(map(max, rows))
    copy = np.arange(count)[:, None]
    src = copy * size + np.concatenate(rows)
    dst = size * count + copy * len(rows) + np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    edges = torch.from_numpy(np.stack([src.reshape(-1), dst.reshape(-1)]))
    data = Data(num_nodes=(size + len(rows)) * count, edge_index=edges)
    if weights is not None:
        data.edge_weight = torch.tensor(weights).repeat(count)
    return partitioned(data, folder, parts, weights=None if weights is None else ["edge_weight"])


def picks(whole: LocalPartition, rows: list[list[int]], fanout: int, **draw) -> list[list[tuple[int, ...]]]:
    """For each copy what its rows pick."""
    gid, size = gids_of(whole)[0], 1 + max(map(max, rows))
    count = len(gid) // (size + len(rows))
    source = neighbor_source(whole, SamplerConfig(0, ((fanout,),), **{"labor": True} | draw))
    found = k_hop(source, {0: gid[size * count :]}, 7)
    sources = np.argsort(gid)[found.gid[0][found.src[0]]] % size
    ends = np.searchsorted(found.dst[0], np.arange(len(rows) * count + 1))
    each = [tuple(sources[b:e].tolist()) for b, e in pairwise(ends.tolist())]
    return [each[i : i + len(rows)] for i in range(0, len(each), len(rows))]


def assert_law(found: Counter, law: dict[tuple[int, ...], float]) -> None:
    assert set(found) <= set(law)
    total = sum(found.values())
    assert chisquare([found[k] for k in law], [p * total for p in law.values()]).pvalue > 1e-4, found


def test_a_row_alone_is_drawn_uniformly(tmp_path: Path) -> None:
    found = picks(copies(tmp_path, [[0, 1, 2, 3, 4]], 8000), [[0, 1, 2, 3, 4]], 2)
    assert_law(Counter(row for (row,) in found), dict.fromkeys(combinations(range(5), 2), 0.1))


@pytest.mark.parametrize(
    ("sources", "lengths", "count", "fanout"),
    [(3000, (3000, 1500), 1, 40), (3000, (3000, 1500), 20, 40), (300, (60,), 2000, 5)],
)
def test_the_smallest_are_picked(
    tmp_path: Path, sources: int, lengths: tuple[int, ...], count: int, fanout: int
) -> None:
    """Where rows are many, the first bytes of numbers decide. Some of the short rows have fewer likely entries than picks."""
    draw = np.random.default_rng(0)
    rows = [sorted(draw.permutation(sources)[:length].tolist()) for length in lengths * count]
    (found,) = picks(copies(tmp_path, rows, 1), rows, fanout)
    key = GraphSchema.single().node_type_keys()[0]
    numbers = reference.source_numbers(7, 0, key, torch.arange(sources), None)
    for row, picked in zip(rows, found, strict=True):
        assert list(picked) == [row[i] for i in reference.pick_smallest(numbers[row], [1] * len(row), fanout).tolist()]


def by_weight(weights: list[float], count: int) -> dict[tuple[int, ...], float]:
    """The law of the `count` smallest of independent numbers, uniform in [0, 1 / weight): the integral over the greatest of them.
    Between the ends of the ranges it is of a polynomial, for which 16 points are exact."""
    law = {}
    nodes, shares = np.polynomial.legendre.leggauss(16)
    below = [np.vectorize(lambda t, w=w: min(1.0, w * t)) for w in weights]
    for chosen in combinations(range(len(weights)), count):
        total = 0.0
        for begin, end in pairwise(sorted({0.0, *(1 / w for w in weights)})):
            t = begin + (nodes + 1) * (end - begin) / 2
            for last in chosen:
                value = np.full(16, weights[last] * (end <= 1 / weights[last]), dtype=np.float64)
                for i in range(len(weights)):
                    if i != last:
                        value = value * (below[i](t) if i in chosen else 1 - below[i](t))
                total += (value * shares).sum() * (end - begin) / 2
        law[chosen] = float(total)
    return law


@pytest.mark.parametrize("fanout", [1, 2])
def test_a_row_with_weights(tmp_path: Path, fanout: int) -> None:
    """An edge of weight 0 is never picked."""
    law = by_weight([1, 2, 3, 4], fanout)
    assert sum(law.values()) == pytest.approx(1)
    row, weights = [0, 1, 2, 3, 4], [1.0, 2.0, 3.0, 4.0, 0.0]
    found = picks(copies(tmp_path, [row], 8000, weights), [row], fanout, weights=("edge_weight",))
    assert_law(Counter(each for (each,) in found), law)


def test_rows_share_what_they_pick(tmp_path: Path) -> None:
    """Rows with the same neighbours pick the same ones. Of rows that share some, the number of nodes that they pick together is
    that over all orders of the nodes."""
    rows = [[0, 1, 2, 3], [0, 1, 2, 3], [2, 3, 4, 5]]
    found = picks(copies(tmp_path, rows, 4000), rows, 2)
    assert all(first == second for first, second, _ in found)
    sizes = np.array([len({*first, *third}) for first, _, third in found])
    orders = [
        [{*sorted(row, key=order.__getitem__)[:2]} for row in (rows[0], rows[2])] for order in permutations(range(6))
    ]
    expected = np.mean([len(first | third) for first, third in orders])
    assert abs(sizes.mean() - expected) < 5 * sizes.std() / len(sizes) ** 0.5
    alone = np.array([len({*a, *b}) for a, _, b in picks(copies(tmp_path / "2", rows, 4000), rows, 2, labor=False)])
    assert sizes.mean() < alone.mean() - 0.1


def test_equal_weights_change_no_pick(tmp_path: Path) -> None:
    """Nor does the number of parts; and what is picked for a node of one type does not depend on other types."""
    rows = [[0, 1, 2, 3], [1, 2, 3, 4, 5]]
    found = picks(copies(tmp_path / "1", rows, 50), rows, 2)
    assert picks(copies(tmp_path / "2", rows, 50, [4.0] * 9, 3), rows, 2, weights=("edge_weight",)) == found


def test_batches_that_draw_neighbours_alike(tmp_path: Path) -> None:
    """`batch_dependency`: a node has the same neighbours in three batches; negatives are drawn as ever. What is resumed in the
    middle of such a run goes on as it would have."""
    whole, cites = partitioned(small_hetero(), tmp_path, 2), ("paper", "cites", "paper")
    every = np.arange(200)
    spec = LoaderSpec(name="t", seeds=np.tile(every, 6), node_type="paper", num_neighbors=[2], batch_size=200)
    edges = {"edge_label_index": np.tile(every, (2, 6)), "edge_type": "paper__cites__paper", "neg_sampling": "binary"}
    links = LinkSpec(name="l", num_neighbors=[2], batch_size=200, **edges)
    with (
        Session(whole, SamplingOptions(batch_dependency=3), seed=1) as alike,
        Session(whole, SamplingOptions(), seed=1) as apart,
    ):

        def drawn(loader) -> list:
            return [(b["paper"].n_id.tolist(), b[cites].edge_index.tolist()) for b in loader]

        loader = alike.make_loader(spec)
        found = drawn(loader)
        assert found[0] == found[1] == found[2] != found[3] == found[4] == found[5]
        loader.load_state_dict(loader.state_dict() | {"delivered": 2})
        assert drawn(loader) == found[2:]
        assert len({str(each) for each in drawn(apart.make_loader(spec))}) == 6
        with pytest.raises(OptionError, match="cannot resume: batch_dependency: 3 in the checkpoint, None now"):
            apart.make_loader(spec).load_state_dict(loader.state_dict() | {"delivered": 2})
        negatives = [[b[cites].edge_label_index.tolist() for b in c.make_loader(links)] for c in (alike, apart)]
        assert negatives[0] == negatives[1]
        assert len({str(each) for each in negatives[0]}) == 6


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_a_loader(tmp_path: Path, workers: int) -> None:
    """Fewer nodes, in a graph of several types. A checkpoint resumes to the same batches, and only with the same method."""
    whole = partitioned(small_hetero(), tmp_path, 2)
    spec = LoaderSpec(name="train", split="train", num_neighbors=[3, 2], batch_size=40)

    def loader_of(method: str):
        options = SamplingOptions(method=method, num_workers=workers * (method == "labor"))
        return Session(whole, options, seed=1)

    with loader_of("labor") as context:
        loader = context.make_loader(spec)
        batches = list(loader)
        state = loader.state_dict() | {"delivered": 1}
        again = context.make_loader(spec)
        again.load_state_dict(state)
        assert [contents(batch) for batch in again] == [contents(batch) for batch in batches][1:]
    with loader_of("neighbor") as context:
        plain = context.make_loader(spec)
        assert sum(b["paper"].num_nodes for b in batches) < 0.95 * sum(b["paper"].num_nodes for b in plain)
        with pytest.raises(OptionError, match="cannot resume: method: 'labor' in the checkpoint, None now"):
            plain.load_state_dict(state)


def test_a_gpu_gives_the_batches_of_a_cpu(tmp_path: Path, kernels, monkeypatch) -> None:
    """The emulated one. A graph that was placed on it for LABOR is drawn from without, too; one that was not says so."""
    whole = partitioned(small_hetero(), tmp_path, 2)
    spec = LoaderSpec(name="train", split="train", num_neighbors=[3, 2], batch_size=40)
    expected = [contents(batch) for batch in Session(whole, SamplingOptions(method="labor"), seed=1).make_loader(spec)]
    monkeypatch.setattr(on_gpu, "is_gpu", lambda device: True)
    monkeypatch.setattr(Kernels, "open", lambda device: kernels)
    with Session(whole, SamplingOptions(method="labor"), seed=1) as context:
        assert [contents(batch) for batch in context.make_loader(spec)] == expected
    config, seeds = SamplerConfig(1, ((2, 2),)), {1: gids_of(whole)[1][:9]}
    for labor in (False, True):
        batch = BatchArrays(whole, labor=labor)
        with closing(
            DeviceStore.open(batch, kernels, topology="device", features="device", budgets=GpuBudgets())
        ) as store:
            found = k_hop(neighbor_source(whole, config, store=store), seeds, 5)
            want = k_hop(neighbor_source(whole, config), seeds, 5)
            assert [ids.tolist() for ids in found.gid] == [ids.tolist() for ids in want.gid]
            if not labor:
                with pytest.raises(
                    OptionError, match=r"sampling.method: labor: the GPU that samples has the graph without"
                ):
                    neighbor_source(whole, replace(config, labor=True), store=store)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batch_dependency": 0}, "sampling.batch_dependency: .*1.*0"),
        ({"method": "labour"}, "sampling.method: expected neighbor.*labor.*'labour'"),
        (
            {"method": "labor", "replace": True},
            "sampling.replace: sampling.method labor draws each neighbour at most once",
        ),
        (
            {"method": "labor", "time_attr": "t", "temporal_strategy": "last"},
            "sampling.temporal_strategy: 'last' takes the latest edges and draws none",
        ),
    ],
)
def test_options_that_do_not_fit(given: dict, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        SamplingOptions(**given)


def test_a_question_that_does_not_fit() -> None:
    with pytest.raises(DataError, match="labor: expected draws without replacement"):
        DrawOptions.from_wire({"labor": True, "replace": True})
