"""An epoch goes on bit for bit on another partition of the graph; what cannot go on is refused by name."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.base import OptionError, PartitionOptions, SamplingOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.loader import DistNeighborLoader, LoaderSpec, Session
from glt_lightning.loader.resume import _differences
from glt_lightning.partition import open_source, partition_graph
from glt_lightning.workers import Ranks
from tests.helpers.contents import Contents, contents
from tests.helpers.partitions import small_graph

OTHERS = {
    "two": PartitionOptions(num_parts=2),
    "four": PartitionOptions(num_parts=4, algorithm="streaming"),
    "metis": PartitionOptions(num_parts=2, algorithm="metis"),
    "degree": PartitionOptions(num_parts=4, hotness="degree"),
}
SPLIT = {"split": "train"}
OWN = {"seeds": np.arange(40, 140)[::-1].copy()}
MASK = {"seeds": np.arange(300) % 3 == 0}
ALL: dict[str, Any] = {}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LocalPartition]:
    folder = tmp_path_factory.mktemp("graphs")
    source = open_source(small_graph(), str(folder))
    for name, options in {"one": PartitionOptions(), **OTHERS}.items():
        partition_graph(source, folder / name, options, progress=False)
    return {name: LocalPartition.open(folder / name) for name in ("one", *OTHERS)}


def loader_of(partition: LocalPartition, seeds: dict[str, Any], placement: str = "global", world_size: int = 1):
    options = SamplingOptions(seed_placement=placement)
    spec = LoaderSpec(name="train", num_neighbors=[3, 2], batch_size=8, shuffle=True, **seeds)
    return Session(partition, options, seed=5, ranks=Ranks(0, world_size)).make_loader(spec)


def stopped(loader: DistNeighborLoader, after: int = 3) -> tuple[Any, list[Contents]]:
    """A state as a checkpoint gives it back, and the batches that are left."""
    loader.set_epoch(2)
    batches = iter(loader)
    for _ in range(after):
        next(batches)
    return json.loads(json.dumps(loader.state_dict())), [contents(batch) for batch in batches]


def rest(loader: DistNeighborLoader, state: Any) -> list[Contents]:
    loader.load_state_dict(state)
    loader.set_epoch(2)
    return [contents(batch) for batch in loader]


@pytest.mark.parametrize("seeds", [SPLIT, OWN, MASK, ALL], ids=["split", "own", "mask", "all"])
def test_other_parts(graphs: dict[str, LocalPartition], seeds: dict[str, Any]) -> None:
    state, left = stopped(loader_of(graphs["one"], seeds))
    assert len(left) > 3
    for name in OTHERS:
        assert rest(loader_of(graphs[name], seeds), state) == left, name
        assert rest(loader_of(graphs["one"], seeds), stopped(loader_of(graphs[name], seeds))[0]) == left, name


def test_other_seeds_are_refused(graphs: dict[str, LocalPartition]) -> None:
    """As many, but in another order."""
    state, _ = stopped(loader_of(graphs["one"], OWN))
    with pytest.raises(OptionError, match="cannot resume: seeds_hash:"):
        rest(loader_of(graphs["one"], {"seeds": OWN["seeds"][::-1].copy()}), state)


@pytest.mark.parametrize("name", ["two", "four", "metis"])
def test_owner_placement_refuses_other_parts(graphs: dict[str, LocalPartition], name: str) -> None:
    """There the plan depends on where the seeds lie: seeds would be trained twice, others never."""
    one = loader_of(graphs["degree"], SPLIT, "owner", world_size=2)
    state, left = stopped(one)
    assert rest(loader_of(graphs["degree"], SPLIT, "owner", world_size=2), state) == left
    with pytest.raises(OptionError, match=r"cannot resume: parts: \[4, 'random', .* in the checkpoint, \[., '"):
        rest(loader_of(graphs[name], SPLIT, "owner", world_size=2), state)


def of_before(partition: LocalPartition) -> LocalPartition:
    """The same in a folder of an earlier release."""
    splits = {name: replace(split, ids_hash=None) for name, split in partition.manifest.splits.items()}
    return LocalPartition(partition.directory, replace(partition.manifest, splits=splits), partition.parts)


def test_checkpoints_of_before(graphs: dict[str, LocalPartition]) -> None:
    """They hold a checksum of the partition's numbers, so they go on with the same parts."""
    old = loader_of(of_before(graphs["two"]), SPLIT)
    state, left = stopped(old)
    assert "seeds_crc32" in state["plan"]
    assert rest(loader_of(of_before(graphs["two"]), SPLIT), state) == left
    assert rest(loader_of(graphs["two"], SPLIT), state) == left
    with pytest.raises(OptionError, match="cannot resume: seeds_crc32:"):
        rest(loader_of(graphs["four"], SPLIT), state)
    with pytest.raises(OptionError, match="this partition folder was written by an earlier release"):
        rest(loader_of(of_before(graphs["two"]), SPLIT), stopped(loader_of(graphs["two"], SPLIT))[0])


def test_owner_placement_of_before(graphs: dict[str, LocalPartition]) -> None:
    loader = loader_of(graphs["two"], SPLIT, "owner")
    state, left = stopped(loader_of(of_before(graphs["two"]), SPLIT, "owner"))
    del state["plan"]["parts"]
    assert rest(loader, state) == left


def test_folders_of_before_are_said(graphs: dict[str, LocalPartition], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="glt_lightning"):
        loader_of(graphs["two"], SPLIT)
        assert "earlier release" not in caplog.text
        loader_of(of_before(graphs["two"]), SPLIT)
    assert "loader 'train': an earlier release wrote this partition folder" in caplog.text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: [], "plan: expected an object"),
        (lambda state: {k: v for k, v in state.items() if k != "plan"}, "plan: expected an object, .* has None"),
        (lambda state: state | {"plan": [1]}, r"plan: expected an object, .* has \[1\]"),
        (lambda state: state | {"plan": {}}, "graph: None in the checkpoint"),
        (lambda state: state | {"epoch": "2"}, "epoch: expected a count, the checkpoint has '2'"),
        (lambda state: state | {"epoch": -1}, "epoch: expected a count"),
        (lambda state: state | {"delivered": 10**9}, "delivered: expected a count up to 13"),
        (lambda state: state | {"delivered": None}, "delivered: expected a count up to 13, .* has None"),
    ],
)
def test_mangled_states(graphs: dict[str, LocalPartition], change: Any, said: str) -> None:
    state, _ = stopped(loader_of(graphs["one"], SPLIT))
    with pytest.raises(OptionError, match=f"loader 'train' cannot resume: {said}"):
        loader_of(graphs["one"], SPLIT).load_state_dict(change(state))


def test_hash_is_in_the_manifest(graphs: dict[str, LocalPartition], tmp_path: Path) -> None:
    hashes = {name: {k: s.ids_hash for k, s in p.manifest.splits.items()} for name, p in graphs.items()}
    assert None not in hashes["one"].values()
    assert len(set(hashes["one"].values())) == 3
    assert all(each == hashes["one"] for each in hashes.values())


def test_only_options_that_differ_are_named() -> None:
    first, second = {"amount": 1, "strict": True}, {"amount": 5, "strict": True}
    assert _differences("links", first, second) == ["links.amount: 1 in the checkpoint, 5 now"]
    assert _differences("links", None, 5) == ["links: None in the checkpoint, 5 now"]
