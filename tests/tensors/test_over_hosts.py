"""One embedding over the ranks of two hosts: the rows, states and checkpoints of the run on one host."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from glt_lightning import DistEmbedding, DistGraph, SparseAdam, SparseSGD
from glt_lightning.base import DataError, PeerError
from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import RowSums
from glt_lightning.tensors import Reach, scratch
from glt_lightning.tensors.dist_embedding import MARKER
from glt_lightning.tensors.saved import write_rows
from glt_lightning.workers import Ranks
from tests.helpers.homes import link_of
from tests.helpers.in_process import InProcessNetwork
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.ranks import run_ranks

NODES, WIDTH, WORLD = 300, 3, 4


@pytest.fixture(scope="module")
def partition(tmp_path_factory: pytest.TempPathFactory) -> LocalPartition:
    return partitioned(small_graph(), tmp_path_factory.mktemp("hosts"), 3)


class Meeting:
    """The `Exchange` of ranks that are threads of this process."""

    size = WORLD

    def __init__(self, rank: int, board: dict[int, Any], barrier: threading.Barrier) -> None:
        self.rank, self._board, self._barrier = rank, board, barrier

    def _all(self, mine: Any) -> list[Any]:
        self._board[self.rank] = mine
        self._barrier.wait(30)
        found = [self._board[rank] for rank in range(self.size)]
        self._barrier.wait(30)
        return found

    def send(self, sums: RowSums, target: np.ndarray) -> list[RowSums]:
        found = []
        for theirs, goes in self._all((sums, target)):
            mine = np.flatnonzero(goes == self.rank)
            found.append(RowSums(theirs.rows[mine], theirs.values[mine], theirs.counts[mine]))
        return found

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        return np.stack(self._all(numbers))

    def barrier(self) -> None:
        self._all(None)

    def close(self) -> None:
        """There is nothing to close."""


class Job:
    """Ranks 0 to 3, on ``hosts`` hosts in turn, as threads."""

    def __init__(self, partition: LocalPartition, hosts: int) -> None:
        self.partition, self.hosts = partition, hosts
        self.network, self._board, self._meet = InProcessNetwork(), {}, threading.Barrier(WORLD)

    def run(self, body: Callable[[Job, int], Any]) -> list[Any]:
        def on_rank(rank: int, exchange: Callable[[str], list[str]]) -> Any:
            self._local.rank, self._local.exchange = rank, exchange
            return body(self, rank)

        self._local = threading.local()
        with self.network:
            return run_ranks(WORLD, on_rank)

    def open(self, hosts: int | None = None) -> DistGraph:
        rank, exchange = self._local.rank, self._local.exchange
        place = f"host{rank % (hosts or self.hosts)}"
        reach = Reach(place, link_of(rank), lambda: f"{place}:0", lambda: self.network)
        graph = DistGraph(self.partition, ranks=Ranks(rank, WORLD, exchange), reach=reach)
        graph._closing.callback(lambda: exchange("nobody reads any more"))
        return graph

    def optimizer(self, embedding: DistEmbedding, made: Any = None) -> Any:
        made = SparseAdam([embedding], lr=0.1) if made is None else made
        made._exchange = Meeting(self._local.rank, self._board, self._meet)
        return made


def train(embedding: DistEmbedding, optimizer: SparseAdam, rank: int, steps: range) -> None:
    for step in steps:
        rows = torch.from_numpy(np.random.default_rng([step, rank]).integers(0, NODES, 50))
        user_ids = torch.from_numpy(embedding.rows.held.ids.read(rows.numpy())).float()
        optimizer.zero_grad()
        (embedding(rows).tanh() * (user_ids % 7 - 3)[:, None]).square().sum().backward()
        optimizer.step()


def values(embedding: DistEmbedding) -> dict[str, np.ndarray]:
    """By the user's ids."""
    rows = embedding.rows
    order = rows.order()
    return {name: each.read(order) for name, each in {"weight": rows.table, **rows.states}.items()}


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        assert np.array_equal(found[name], each), name


def whole_run(job: Job, rank: int, storage: str | None = None) -> dict[str, np.ndarray]:
    embedding = DistEmbedding(WIDTH, storage=storage)
    with job.open() as graph:
        embedding.attach(graph, "emb")
        train(embedding, job.optimizer(embedding), rank, range(6))
        return values(embedding)


@pytest.fixture(scope="module")
def expected(partition: LocalPartition) -> dict[str, np.ndarray]:
    return Job(partition, 1).run(whole_run)[0]


@pytest.mark.parametrize(("reduction", "shared"), [("occurrences", -20.0 / 8), ("ddp", -20.0 / WORLD)])
def test_reductions_count_the_occurrences_of_all_ranks(partition, reduction, shared):
    """Rank r looks row 5 up twice and row r once, with gradients r + 1."""

    def body(job: Job, rank: int) -> list[float]:
        embedding = DistEmbedding(WIDTH, init="zeros")
        with job.open() as graph:
            embedding.attach(graph, "emb")
            optimizer = job.optimizer(embedding, SparseSGD([embedding], lr=1.0, reduction=reduction))
            (embedding(torch.tensor([5, 5, rank])) * (rank + 1)).sum().backward()
            optimizer.step()
            return embedding.rows.table.read(np.array([5, 0, 1, 2, 3]))[:, 0].tolist()

    alone = 1.0 if reduction == "occurrences" else WORLD
    for found in Job(partition, 2).run(body):
        assert found == [shared, *(-(rank + 1) / alone for rank in range(WORLD))]


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_equals_the_run_on_one_host(partition, expected, storage, tmp_path, monkeypatch):
    if storage == "disk" and scratch._file_system(tmp_path) in scratch._IN_MEMORY:
        pytest.skip(f"{tmp_path} lies in memory")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for found in Job(partition, 2).run(lambda job, rank: whole_run(job, rank, storage)):
        same(found, expected)


def test_goes_on_over_the_next_graph(partition, expected):
    """Rows and states outlive the graph, and the ranks of other hosts reach them through the next one."""

    def body(job: Job, rank: int) -> dict[str, np.ndarray]:
        embedding = DistEmbedding(WIDTH)
        with job.open() as graph:
            embedding.attach(graph, "emb")
            optimizer = job.optimizer(embedding)
            train(embedding, optimizer, rank, range(3))
        with pytest.raises(PeerError, match="closed"):
            values(embedding)
        table = embedding.rows.table
        with job.open() as graph:
            embedding.attach(graph, "emb")
            assert embedding.rows.table is table
            train(embedding, optimizer, rank, range(3, 6))
            return values(embedding)

    for found in Job(partition, 2).run(body):
        same(found, expected)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 2)])
def test_checkpoints_of_other_hosts(partition, expected, tmp_path, before, after):
    """Rank 0 writes all rows; each host reads its own."""
    saved = tmp_path / "c.ckpt.rows-ab12"

    def first(job: Job, rank: int) -> Any:
        embedding = DistEmbedding(WIDTH)
        with job.open() as graph:
            embedding.attach(graph, "emb")
            optimizer = job.optimizer(embedding)
            train(embedding, optimizer, rank, range(3))
            digest = write_rows(saved, [embedding.rows.to_save(optimizer.kind)], "ab12") if not rank else None
            return digest, optimizer.state_dict()

    digest, state = Job(partition, before).run(first)[0]
    named = {"folder": str(saved), "index": digest, "nonce": "ab12"}

    def second(job: Job, rank: int) -> dict[str, np.ndarray]:
        embedding = DistEmbedding(WIDTH, init="zeros")
        embedding.set_extra_state({MARKER: {"name": "emb", **named}})
        with job.open() as graph:
            embedding.attach(graph, "emb")
            optimizer = job.optimizer(embedding)
            optimizer.load_state_dict(state | {MARKER: state[MARKER] | named})
            train(embedding, optimizer, rank, range(3, 6))
            return values(embedding)

    for found in Job(partition, after).run(second):
        same(found, expected)


def test_rows_move_to_the_hosts_of_the_next_graph(partition):
    """Other ranks have a part's rows than before: their values go with them."""

    def body(job: Job, rank: int) -> Any:
        embedding = DistEmbedding(WIDTH)
        with job.open() as graph:
            embedding.attach(graph, "emb")
            train(embedding, job.optimizer(embedding), rank, range(2))
            before = values(embedding)["weight"]
        with job.open(hosts=4) as graph:
            embedding.attach(graph, "emb")
            return before, values(embedding)["weight"]

    for before, after in Job(partition, 2).run(body):
        assert np.array_equal(before, after)


def test_rows_that_no_host_of_this_run_has(partition):
    """An error on all ranks where the hosts of the run before are gone."""

    def body(job: Job, rank: int) -> str:
        embedding = DistEmbedding(WIDTH)
        with job.open() as graph:
            embedding.attach(graph, "emb")
        if rank % 2:
            embedding.close()  # as a process that was started again
        with job.open() as graph, pytest.raises(DataError) as raised:
            embedding.attach(graph, "emb")
        return str(raised.value)

    for said in Job(partition, 2).run(body):
        assert said.startswith(
            "embedding 'emb': of its 300 rows from the run before, 200 lie on hosts of this run. Load a"
        )
