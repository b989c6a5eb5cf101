"""Neither memory nor file descriptors grow over a thousand batches and twenty epochs."""

import os

import psutil
import pytest

from glt_lightning.base import SamplingOptions
from glt_lightning.loader import LoaderSpec, Session
from tests.helpers.partitions import partitioned, small_graph


def family_bytes() -> int:
    """Memory of this process and its children that is theirs alone, plus their share of what is shared."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(p.memory_full_info().pss for p in processes)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_flat(tmp_path, workers):
    partition = partitioned(small_graph(4000), tmp_path, 2)
    spec = LoaderSpec(name="train", split="train", num_neighbors=[10, 10], batch_size=24, shuffle=True)
    with Session(partition, SamplingOptions(num_workers=workers), seed=1) as context:
        loader = context.make_loader(spec)
        assert 20 * len(loader) > 1000
        for _ in range(6):
            for _batch in loader:
                pass
        del _batch
        memory, files = family_bytes(), len(os.listdir("/proc/self/fd"))
        for epoch in range(20):
            for i, _batch in enumerate(loader):
                if i == 10 and epoch % 4 == 3:
                    break
        del _batch
        assert family_bytes() - memory < 8 << 20
        assert len(os.listdir("/proc/self/fd")) <= files
