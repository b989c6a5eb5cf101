"""With cache.memory a host needs memory for that, not for all attributes: neither its own nor the page cache's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from tests.helpers.memory_group import memory_group
from tests.helpers.partitions import partitioned

NODES, FEATURES, BUDGET = 100_000, 500, 50 << 20

IMPORTS = """
import numpy as np
from glt_lightning.graph import HostTier, LocalPartition
from glt_lightning.sampling import BatchRequest, KHopSampler, SamplerConfig
"""

# A process of the group from its first line on, without torch. Says a digest of its batches.
SCRIPT = f"""
import os, sys, zlib
folder, memory, procs = sys.argv[1:]
open(procs, "w").write(str(os.getpid()))
{IMPORTS}
partition = LocalPartition.open(folder)
if memory != "mapped":
    partition = partition.with_memory(HostTier.create(partition, int(memory)))
sampler, gids, crc = KHopSampler(partition, SamplerConfig(0, ((5,), (5,)))), partition.split("train").gids, 0
memory = np.empty(0, np.uint8)
for number in range(60):
    chosen = np.ascontiguousarray(gids[number * 500 : (number + 1) * 500])
    draft = sampler.draft(BatchRequest(number, number, chosen, np.arange(500)))
    if len(memory) < draft.nbytes:
        memory = np.empty(2 * draft.nbytes, np.uint8)
    for array in draft.write(memory).values():
        crc = zlib.crc32(np.ascontiguousarray(array), crc)
print(crc)
"""


@pytest.mark.slow
def test_page_cache_and_own_memory(tmp_path: Path) -> None:
    """Features take 4 times the budget."""
    rng = np.random.default_rng(0)
    data = Data(
        x=torch.from_numpy(rng.random((NODES, FEATURES), dtype=np.float32)),
        edge_index=torch.from_numpy((rng.random((2, 6 * NODES)) ** 2 * NODES).astype(np.int64)),
        train_mask=torch.ones(NODES, dtype=torch.bool),
    )
    partition = partitioned(data, tmp_path, 2)
    features = NODES * FEATURES * 4
    assert features > 3.8 * BUDGET
    found, peaks = {}, {}
    for memory in ("mapped", str(BUDGET), "1"):
        for file in partition.directory.rglob("*.npy"):
            forget(file)
        # Pages belong to the group that reads them first: those of modules to none of the groups.
        subprocess.run([sys.executable, "-c", IMPORTS], check=True, timeout=120)
        with memory_group() as group:
            ran = subprocess.run(
                [sys.executable, "-c", SCRIPT, str(partition.directory), memory, str(group.procs)],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr
            found[memory], peaks[memory] = ran.stdout, group.peak()
    assert found["mapped"] == found[str(BUDGET)] == found["1"]
    assert peaks["mapped"] > features  # the measure sees the page cache
    others = peaks["1"]  # the interpreter, the topology, a batch
    assert others < features - BUDGET
    assert peaks[str(BUDGET)] < others + 1.2 * BUDGET


def forget(file: Path) -> None:
    """Takes a file out of the page cache."""
    fd = os.open(file, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
