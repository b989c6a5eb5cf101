"""Embeddings in a script: lookups, gradients and steps of one process, against `nn.Embedding`."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from glt_lightning import DistEmbedding, DistGraph, Optimizers, SparseAdagrad, SparseAdam, SparseSGD
from glt_lightning.base import DataError, OptionError
from tests.helpers.leaks import count_memfds
from tests.helpers.partitions import partitioned, small_graph, small_hetero

NODES, WIDTH = 300, 4


@pytest.fixture(scope="module", params=[1, 3])
def graph(request, tmp_path_factory):
    with DistGraph(partitioned(small_graph(), tmp_path_factory.mktemp("graph"), request.param)) as graph:
        yield graph


def twins(graph, init="zeros", **options):
    """An embedding, and a dense one of the same values in the order of rows."""
    embedding = DistEmbedding(WIDTH, init=init)
    embedding.attach(graph)
    dense = nn.Embedding(NODES, WIDTH)
    with torch.no_grad():
        dense.weight.copy_(embedding(torch.arange(NODES)))
    return embedding, dense


def whole(embedding):
    with torch.no_grad():
        return embedding(torch.arange(NODES))


def integers(rng, *shape):
    return torch.from_numpy(rng.integers(-3, 4, shape).astype(np.float32))


def test_first_values_are_by_user_id(graph):
    values = np.arange(NODES * WIDTH, dtype=np.float32).reshape(NODES, WIDTH)
    embedding, _ = twins(graph, init=values)
    rows = graph.rows_of(torch.arange(NODES))
    assert torch.equal(embedding(rows), torch.from_numpy(values))
    assert torch.equal(embedding(rows[:6].reshape(2, 3)), torch.from_numpy(values)[:6].reshape(2, 3, WIDTH))


def test_steps_of_sgd_as_dense(graph):
    """Several lookups in a step, rows that come twice, several backward passes: exact with integers."""
    rng = np.random.default_rng(0)
    embedding, dense = twins(graph)
    sparse, plain = SparseSGD([embedding], lr=0.5), torch.optim.SGD(dense.parameters(), lr=0.5)
    for _ in range(4):
        plain.zero_grad()
        sparse.zero_grad()
        for _ in range(2):
            first, second = (torch.from_numpy(rng.integers(0, NODES, n)) for n in (50, 20))
            weights = integers(rng, 70, WIDTH)
            for each in (dense, embedding):
                (torch.cat([each(first), each(second)]) * weights).sum().backward()
        plain.step()
        sparse.step()
        assert torch.equal(whole(embedding), dense.weight.detach())


def test_clip_and_scale_by_the_carrier(graph):
    """Whoever scales the gradients of the groups scales the rows."""
    rng = np.random.default_rng(1)
    embedding, dense = twins(graph, init=("normal", 0, 1))
    both = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)
    both[1].load_state_dict(both[0].state_dict())
    plain = torch.optim.SGD([*dense.parameters(), *both[0].parameters()], lr=0.1)
    sparse = Optimizers(torch.optim.SGD(both[1].parameters(), lr=0.1), SparseSGD([embedding], lr=0.1))
    for _ in range(3):
        rows = torch.from_numpy(rng.integers(0, NODES, 40))
        for optimizer, table, linear in ((plain, dense, both[0]), (sparse, embedding, both[1])):
            optimizer.zero_grad()
            linear(table(rows)).square().sum().backward()
        sparse.sparse[0].exchange()
        norms = [
            nn.utils.clip_grad_norm_([p for group in each.param_groups for p in group["params"]], 0.3)
            for each in (plain, sparse)
        ]
        assert norms[0] > 1
        torch.testing.assert_close(*norms)
        plain.step()
        sparse.step()
        torch.testing.assert_close(whole(embedding), dense.weight.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rule", [SparseAdagrad, SparseAdam])
def test_rows_without_a_gradient_stay(graph, rule):
    embedding, _ = twins(graph, init=("uniform", -1, 1))
    before = whole(embedding)
    optimizer = rule([embedding], lr=0.25)
    used = torch.tensor([7, 3, 7])
    embedding(used).sum().backward()
    optimizer.step()
    moved = (whole(embedding) != before).any(dim=1)
    assert moved.nonzero().view(-1).tolist() == [3, 7]
    torch.testing.assert_close(
        whole(embedding)[used], before[used] - 0.25
    )  # the first step is lr, whatever the gradient


def test_reduction_by_occurrences(graph):
    embedding, _ = twins(graph)
    optimizer = SparseSGD([embedding], lr=1.0, reduction="occurrences")
    (embedding(torch.tensor([5, 5, 5, 6])) * torch.tensor([[1.0], [2.0], [6.0], [4.0]])).sum().backward()
    optimizer.step()
    assert whole(embedding)[[5, 6], 0].tolist() == [-3.0, -4.0]


def test_own_clipping(graph):
    embedding, _ = twins(graph)
    optimizer = SparseSGD([embedding], lr=1.0, clip_value=2.0, clip_row_norm=3.0)
    (embedding(torch.tensor([1, 2])) * torch.tensor([[9.0], [0.5]])).sum().backward()
    optimizer.step()
    assert whole(embedding)[[1, 2], 0].tolist() == [-1.5, -0.5]  # 9 -> 2, the row's norm 4 -> 3


def test_memory_does_not_grow(graph):
    embedding, _ = twins(graph)
    rows = torch.arange(100)
    for _ in range(1000):
        embedding(rows)  # a gradient that nobody computes
    gc.collect()
    assert not embedding._received
    for _ in range(1000):
        embedding(rows).sum().backward()
    assert len(embedding._received) == 1
    assert embedding._sums is not None
    assert len(embedding._sums.rows) == 100
    embedding.drop()


@pytest.mark.parametrize("exchanged", [False, True])
def test_a_gradient_may_be_written_over_for_the_next_pass(graph, exchanged):
    embedding, _ = twins(graph)
    optimizer = SparseSGD([embedding], lr=1.0)
    gradient = torch.empty(2, embedding.embedding_dim)
    for value in (1.0, 2.0):
        embedding(torch.tensor([7, 3])).backward(gradient.fill_(value))
        if exchanged:
            optimizer.exchange()
    optimizer.step()
    assert whole(embedding)[[3, 7], 0].tolist() == [-3.0, -3.0]


def test_zero_grad_forgets(graph):
    embedding, _ = twins(graph)
    optimizer = SparseSGD([embedding], lr=1.0)
    embedding(torch.tensor([1])).sum().backward()
    optimizer.zero_grad()
    optimizer.step()
    assert (whole(embedding) == 0).all()


def test_a_new_optimizer_begins_with_new_states(graph):
    embedding, _ = twins(graph)
    for _ in range(2):
        optimizer = SparseAdagrad([embedding], lr=1.0)
        before = whole(embedding)[3, 0].item()
        (embedding(torch.tensor([3])) * 5).sum().backward()
        optimizer.step()
        assert whole(embedding)[3, 0].item() == before - 1.0


def test_copies(graph):
    embedding, _ = twins(graph, init="ones")
    assert torch.equal(whole(copy.deepcopy(embedding)), whole(embedding))  # the same table
    with pytest.raises(DataError, match="not attached to a graph"):
        pickle.loads(pickle.dumps(embedding))(torch.tensor([1]))


def test_batches_of_several_node_types(tmp_path):
    data = small_hetero()
    with DistGraph(partitioned(data, tmp_path, 2)) as graph:
        with pytest.raises(DataError, match="expected one of 'author', 'paper'; got None"):
            DistEmbedding(2).attach(graph)
        embedding = DistEmbedding(2, of="author")
        embedding.attach(graph)
        data["author"].row = torch.tensor([3, 1])
        assert torch.equal(embedding(data), embedding(torch.tensor([3, 1])))
        with pytest.raises(DataError, match=r"the batch has no row numbers\. Set data.batches.with_row: true"):
            embedding(data["paper"])
    assert len(embedding(torch.tensor([0]))) == 1  # the table stays when the graph is closed


def test_refusals(graph, tmp_path):
    embedding, _ = twins(graph)
    for rows, said in (
        (torch.tensor([NODES]), "300 at position 0 is no row"),
        (torch.ones(2), "expected rows as int64"),
    ):
        with pytest.raises(DataError, match=said):
            embedding(rows)
    with pytest.raises(OptionError, match="embedding_dim: expected an integer >= 1, got 0"):
        DistEmbedding(0)
    with pytest.raises(OptionError, match="an embedding is there twice"):
        SparseSGD([embedding, embedding], lr=1.0)
    with pytest.raises(OptionError, match="lr: expected a number >= 0, got -1"):
        SparseSGD([embedding], lr=-1)
    with pytest.raises(OptionError, match="reduction"):
        SparseSGD([embedding], lr=1, reduction="mean")
    with pytest.raises(OptionError, match="two optimizers train the same embedding"):
        Optimizers(torch.optim.SGD(nn.Linear(1, 1).parameters()), [SparseSGD([embedding], lr=1)] * 2)
    with (
        pytest.raises(OptionError, match="has the rows of another graph"),
        DistGraph(partitioned(small_graph(60), tmp_path)) as g,
    ):
        embedding.attach(g)
    with pytest.raises(DataError, match="this state dict has no rows"):
        embedding.load_state_dict(embedding.state_dict())


def test_a_table_ends_with_its_embedding(graph):
    gc.collect()
    gc.disable()
    try:
        before = count_memfds()
        for _ in range(2):
            twins(graph)
        assert count_memfds() == before
    finally:
        gc.enable()
