"""A batch is a pure function: the same on any producer, number of parts, processes and threads."""

import itertools

import pytest

from glt_lightning.base import SamplingOptions
from glt_lightning.loader import LoaderSpec, Session
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph, small_hetero

PARTS, WORKERS, THREADS = (1, 2, 5), (0, 1, 3), (1, 2)


@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize("replace", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_three_epochs(tmp_path, make, replace):
    graph = make()
    epochs = {}
    partitions = {n: partitioned(graph, tmp_path, n, undirected=True) for n in PARTS}
    for parts, workers, threads in itertools.product(PARTS, WORKERS, THREADS):
        options = SamplingOptions(num_workers=workers, num_threads=threads, replace=replace, with_edge=True)
        spec = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=16, shuffle=True)
        with Session(partitions[parts], options, seed=7) as context:
            loader = context.make_loader(spec)
            found = []
            for epoch in range(3):
                loader.set_epoch(epoch)
                found += [contents(batch) for batch in loader]
            epochs[parts, workers, threads] = found
    first = epochs[1, 0, 1]
    assert len(set(first)) == len(first) == 3 * len(loader)
    for place, found in epochs.items():
        assert found == first, place


def test_many_threads_on_large_batches(tmp_path):
    """Enough rows per hop that the threads really share the work."""
    partition = partitioned(small_graph(6000), tmp_path)
    found = []
    for threads in (1, 2, 5):
        with Session(partition, SamplingOptions(num_threads=threads), seed=1) as context:
            loader = context.make_loader(LoaderSpec(name="all", num_neighbors=[5, 5], batch_size=5000, exact=True))
            found.append([contents(batch) for batch in loader])
    assert found[0] == found[1] == found[2]
