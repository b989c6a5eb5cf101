"""A mapped data set is pickled as its folder, and another process maps that."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp

import glt_lightning
import glt_lightning.compat.glt as glt
from glt_lightning.base import SamplerError
from tests.compat.test_single import ring_data
from tests.helpers.rings import NODES, ring_folder
from tests.partition.sources.test_pyg import data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ring").mkdir()
    return ring_folder(tmp_path / "ring", nodes=2000) / "parts"


def rows_of(partition: glt_lightning.LocalPartition) -> list[np.ndarray]:
    return [np.asarray(each) for each in partition.mapped_user_ids(0) if each is not None]


def test_a_partition_is_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    with_maps = glt_lightning.LocalPartition.open(folder.name, parts=[1])
    content = pickle.dumps(with_maps)
    assert len(content) < 10_000
    monkeypatch.chdir("/")
    again = pickle.loads(content)
    assert again.parts == (1,)
    assert again.identity == with_maps.identity
    np.testing.assert_array_equal(rows_of(again)[0], rows_of(with_maps)[0])
    assert again.as_stored.manifest == with_maps.as_stored.manifest
    again.close()
    with_maps.close()


def test_a_host_tier_is_not_pickled(folder: Path) -> None:
    class Tier:
        def require(self, *_: Any) -> None: ...

    partition = glt_lightning.LocalPartition.open(folder, memory=Tier())  # type: ignore[arg-type]
    with pytest.raises(SamplerError, match="with a host tier cannot be pickled"):
        pickle.dumps(partition)
    partition.close()


def in_another_process(rank: int, given: glt.distributed.DistDataset, path: Path) -> None:
    torch.save([torch.from_numpy(each) for each in rows_of(given.map(whole=True))] + list(given.node_split), path)
    given.close()


@pytest.mark.slow
def test_a_mapped_data_set_goes_through_spawn(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    dataset = glt.distributed.DistDataset()
    dataset.load(folder.name, 0)
    dataset.random_node_split(0.1, 0.1)
    mp.spawn(in_another_process, (dataset, tmp_path / "found"))
    found = torch.load(tmp_path / "found")
    for mine, theirs in zip([*rows_of(dataset.map(whole=True)), *dataset.node_split], found, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), theirs.numpy())
    dataset.close()


def test_a_data_set_in_memory_is_its_tensors() -> None:
    dataset = ring_data()
    dataset.open()
    again = pickle.loads(pickle.dumps(dataset))
    loader = glt.loader.NeighborLoader(again, [2], torch.arange(NODES), batch_size=NODES)
    assert next(iter(loader)).x.flatten().tolist() == list(range(NODES))


def test_a_data_module_that_is_set_up(tmp_path: Path) -> None:
    module = glt_lightning.GLTDataModule(data(), root=str(tmp_path), num_neighbors=[2], batch_size=2)
    module.prepare_data()
    module.setup()
    again = pickle.loads(pickle.dumps(module))
    assert again.num_nodes == module.num_nodes
    for each in (module, again):
        each.teardown()
