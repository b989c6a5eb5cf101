"""A graph in memory as a partition folder for as long as somebody uses it: samplers read mapped files."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.glt.partitioners import RandomPartitioner
from glt_lightning.partition.sources.tensors import TensorGraph

_PREFIX = "glt-lightning-graph-"
_LOCK = "in-use"


def open_in_memory(graph: TensorGraph) -> LocalPartition:
    """The graph as one part. Its folder goes with the returned object, at the latest when Python ends; what a killed process left
    is removed here."""
    _remove_stale()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go of it when this process ends, however it does
    try:
        RandomPartitioner(
            folder / "parts",
            1,
            graph.num_nodes,
            graph.edge_index,
            graph.node_feat,
            None,
            graph.edge_feat,
            None,
            graph.edge_weights,
            "by_src" if graph.by_src else "by_dst",
        ).partition(progress=False)
        partition = LocalPartition.open(folder / "parts")
    except BaseException:
        _remove(folder, lock)
        raise
    weakref.finalize(partition, _remove, folder, lock)
    return partition


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        os.close(lock)


def _remove_stale() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # of another user, in use, or just removed
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
