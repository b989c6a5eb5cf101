"""A file of a partition that is truncated while a process maps it is named; it does not end the process without a word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import PartitionError, SamplingOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.workers import Message
from glt_lightning.workers.cluster.owner import Owner
from glt_lightning.workers.transport.message import pack
from tests.helpers.contents import contents
from tests.helpers.owners import CALLER
from tests.helpers.partitions import partitioned, small_graph

NODES = 6000
X, INDICES, IDS = "part0/nodes/0/x.npy", "part0/edges/0/indices.npy", "part0/nodes/0/n_id.npy"


@pytest.fixture
def partition(tmp_path: Path) -> LocalPartition:
    return partitioned(small_graph(NODES), tmp_path)


def cut_off(partition: LocalPartition, path: str) -> bytes:
    """Leaves the first page, the header. Returns what was there."""
    file = partition.directory / path
    whole = file.read_bytes()
    os.truncate(file, 4096)
    return whole


def spec() -> LoaderSpec:
    return LoaderSpec(name="train", split="train", num_neighbors=[3, 3], batch_size=500, shuffle=True)


@pytest.mark.parametrize("path", [X, INDICES, IDS])
@pytest.mark.parametrize("threads", [1, 3])
def test_batches_made_in_this_process(partition: LocalPartition, path: str, threads: int) -> None:
    with Session(partition, SamplingOptions(num_threads=threads)) as context:
        batches = iter(context.make_loader(spec()))
        next(batches)
        cut_off(partition, path)
        with pytest.raises(PartitionError, match=f"{path}: damaged: it was truncated"):
            list(batches)
    partition.close()


def test_goes_on_with_the_file_in_its_place(partition: LocalPartition) -> None:
    """Once the maps are let go of, nothing is left of the fault."""
    with Session(partition) as context:
        expected = [contents(batch) for batch in context.make_loader(spec())]
        whole = cut_off(partition, X)
        with pytest.raises(PartitionError, match=X):
            list(context.make_loader(spec()))
    partition.close()
    (partition.directory / X).write_bytes(whole)
    again = LocalPartition.open(partition.directory)
    with Session(again) as context:
        assert [contents(batch) for batch in context.make_loader(spec())] == expected
    again.close()


def test_an_array_that_somebody_keeps_spoils_no_other_partition(partition: LocalPartition, tmp_path: Path) -> None:
    """As the traceback of the error does in a notebook, while the folder is replaced."""
    kept = partition.node_shards(0, "x")
    with Session(partition) as context:
        cut_off(partition, X)
        with pytest.raises(PartitionError, match=X):
            list(context.make_loader(spec()))
    partition.close()
    healthy = partitioned(small_graph(NODES), tmp_path / "again")
    with Session(healthy) as context:
        assert sum(1 for _ in context.make_loader(spec()))
    healthy.close()
    del kept


def test_rows_served_to_others(partition: LocalPartition) -> None:
    owner = Owner(partition, 1 << 20)
    arrays, body = pack({"0": np.arange(NODES)})
    ask = Message({"tables": [["node", 0, ["x"]]], "arrays": arrays}, body)
    owner.calls["gather"](ask, CALLER)
    cut_off(partition, X)
    with pytest.raises(PartitionError, match=f"{X}: damaged: it was truncated"):
        owner.calls["gather"](ask, CALLER)
    owner.close()
    partition.close()


def test_user_ids(partition: LocalPartition) -> None:
    cut_off(partition, IDS)
    with pytest.raises(PartitionError, match=f"{IDS}: damaged: it was truncated"):
        partition.seeds(0)
    partition.close()


READS = """
import os, sys
from glt_lightning.graph import LocalPartition
partition = LocalPartition.open(sys.argv[1])
ids = partition.user_ids_by_part(0)[0]
os.truncate(partition.directory / "part0/nodes/0/n_id.npy", 4096)
print(ids[3])
"""
SENT = """
import os, signal, sys
{before}
from glt_lightning.graph import LocalPartition
partition = LocalPartition.open(sys.argv[1])
os.kill(os.getpid(), signal.SIGBUS)
print("alive")
"""


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_reads_that_nobody_guards_name_the_file(partition: LocalPartition) -> None:
    done = run(READS, partition.directory)
    assert done.returncode == -signal.SIGBUS
    assert f"glt_lightning: {partition.directory / IDS}: was truncated" in done.stderr
    assert done.stdout == ""


def test_other_signals_go_where_they_went(partition: LocalPartition) -> None:
    assert run(SENT.format(before=""), partition.directory).returncode == -signal.SIGBUS
    handled = run(SENT.format(before="signal.signal(signal.SIGBUS, lambda *_: print('seen'))"), partition.directory)
    assert (handled.returncode, handled.stdout.split()) == (0, ["seen", "alive"])
    dumped = run(SENT.format(before="import faulthandler; faulthandler.enable()"), partition.directory)
    assert dumped.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in dumped.stderr
