"""Tables on disk: the same rows, in a file that nobody sees, and errors that say what is wrong with its folder."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glt_lightning import DistEmbedding, DistGraph, DistTensor, SparseAdagrad, SparseAdam
from glt_lightning.base import OptionError, TensorOptions, WriteError
from glt_lightning.graph import LocalPartition
from glt_lightning.lightning.embeddings import TrainRows
from glt_lightning.tensors import scratch
from tests.helpers.partitions import partitioned, small_graph

NODES = 300


@pytest.fixture(scope="module")
def partition(tmp_path_factory: pytest.TempPathFactory) -> LocalPartition:
    return partitioned(small_graph(), tmp_path_factory.mktemp("disk"), 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if scratch._file_system(tmp_path) in scratch._IN_MEMORY:
        pytest.skip(f"{tmp_path} lies in memory")
    return tmp_path


def trained(partition: LocalPartition, rule: Any, storage: str | None = None, **options: Any) -> list[np.ndarray]:
    embedding = DistEmbedding(5, storage=storage)
    with DistGraph(partition, options=TensorOptions(**options)) as graph:
        embedding.attach(graph, "emb")
        optimizer = rule([embedding])
        for step in range(4):
            rows = torch.from_numpy(np.random.default_rng(step).integers(0, NODES, 100))
            optimizer.zero_grad()
            embedding(rows).tanh().square().sum().backward()
            optimizer.step()
        rows = embedding.rows
        assert {each.on_disk for each in rows.held.all()} == {"disk" in (storage, options.get("storage"))}
        assert (graph.tables.nbytes == 0) == rows.table.on_disk
        return [each.read(np.arange(NODES)) for each in rows.held.all()]


RULES = [
    lambda tables: SparseAdagrad(tables, lr=0.1),
    lambda tables: SparseAdam(tables, lr=0.1, correction="global"),
]


@pytest.mark.parametrize("rule", RULES)
def test_the_same_rows_as_in_memory(partition, folder, monkeypatch, rule):
    """Whoever says it, the embedding or the options; also where few rows are asked for at once. The limit is for memory."""
    monkeypatch.setattr(scratch, "AT_ONCE", 7)
    expected = trained(partition, rule)
    for options in (
        {"storage": "disk", "limit": 1, "scratch": str(folder)},
        {"storage": "disk", "scratch": str(folder)},
    ):
        found = trained(partition, rule, **options)
        assert all(map(np.array_equal, found, expected))
        assert not list(folder.iterdir())


def test_a_file_system_without_nameless_files(partition, folder, monkeypatch):
    """The name is removed at once; other processes map the file all the same."""
    opened, plain = [], os.open

    def refusing(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            opened.append(path)
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return plain(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refusing)
    found = trained(partition, RULES[0], "disk", scratch=str(folder))
    assert opened
    assert all(map(np.array_equal, found, trained(partition, RULES[0])))


def test_pages_are_asked_for(partition, folder):
    """Each page of the rows once, those side by side together."""
    with DistGraph(partition, options=TensorOptions(storage="disk", scratch=str(folder))) as graph:
        table = DistTensor((NODES, 512), torch.float32, "wide", graph=graph).table  # two rows a page
        before = table.pages.asked
        table.read(np.array([0, 9, 1, 9, 8, 2]))
        assert table.pages.asked - before == 3  # rows 0 and 1, row 2, rows 8 and 9


def test_the_log_says_how_often_the_disk_was_waited_for(partition, folder, caplog):
    module = torch.nn.Module()
    module.emb = DistEmbedding(512, storage="disk")  # two rows a page
    with DistGraph(partition, options=TensorOptions(scratch=str(folder))) as graph:
        module.emb.attach(graph, "emb")
        said, caplog.handler.level = TrainRows(), logging.INFO
        said.on_train_epoch_start(None, module)
        module.emb(torch.tensor([0, 1, 9]))
        with caplog.at_level(logging.INFO, "lightning.pytorch.utilities.rank_zero"):
            said.on_train_epoch_end(None, module)
    assert "rows on the disk: 2 pages of 4 KiB were asked for in this epoch" in caplog.text


def test_refusals(partition, folder, monkeypatch):
    with pytest.raises(OptionError, match=r"cluster.tensors.storage: expected memory, disk; got 'dsik'"):
        TensorOptions(storage="dsik")
    with pytest.raises(OptionError, match="DistEmbedding: storage: expected memory, disk"):
        DistEmbedding(4, storage="dsik")
    with pytest.raises(OptionError, match=f"cluster.tensors.scratch: {folder}/no is no folder on this host"):
        trained(partition, RULES[0], "disk", scratch=f"{folder}/no")
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
    with pytest.raises(
        WriteError, match=rf"{folder}: a tensor of 6,000 bytes cannot be written \(No space left\); .* free. Free"
    ):
        trained(partition, RULES[0], "disk", scratch=str(folder))
    monkeypatch.setattr(scratch, "_file_system", lambda folder: "tmpfs")
    with pytest.raises(OptionError, match=rf"cluster.tensors.scratch: {folder} lies in memory \(tmpfs\)"):
        trained(partition, RULES[0], "disk", scratch=str(folder))
