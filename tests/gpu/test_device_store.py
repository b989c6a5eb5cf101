"""The store on a real device: registered memory of the host, its own memory, and both at once."""

import pytest
import torch

from glt_lightning.graph import BatchArrays, DeviceStore, copy_for_uva, open_uva
from glt_lightning.kernels import Registered
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.stores import check_attributes, check_batches, check_decoded, open_with
from tests.helpers.wide import padded_graph, wide_graph

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("make", [small_graph, small_hetero, wide_graph, padded_graph])
@pytest.mark.parametrize(("memory", "share"), [("device", 1), ("uva", 0), ("hybrid", 0.001), ("hybrid", 0.5)])
def test_the_same_as_on_the_cpu(kernels, tmp_path, make, memory, share):
    partition = partitioned(make(), tmp_path, 3)
    need = BatchArrays(partition).need
    lists, rows = (max(1, int(share * nbytes)) for nbytes in (need.topology, need.features))
    before = torch.cuda.memory_allocated(kernels.device)
    store = open_with(partition, kernels, memory, memory, lists, rows)
    torch.cuda.synchronize(kernels.device)
    assert (store.graph_memory, store.feature_memory) == (memory, memory)
    check_batches(store, partition)
    check_attributes(store, partition)
    store.close()
    assert torch.cuda.memory_allocated(kernels.device) == before


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "int8"])
@pytest.mark.parametrize("memory", ["device", "uva", "hybrid"])
@pytest.mark.parametrize("make", [wide_graph, padded_graph])
def test_rows_in_fewer_bytes_are_decoded(kernels, tmp_path, make, kind, memory):
    check_decoded(make(), kind, memory, kernels, tmp_path)


def test_what_another_rank_copied_can_be_registered(kernels, tmp_path):
    """A second map of the memfd, as every rank but the first has it; registered anew after it was closed."""
    partition = partitioned(small_graph(), tmp_path, 2)
    made = copy_for_uva(BatchArrays(partition), ["topology", "features"])
    for _ in range(2):
        opened = open_uva(BatchArrays(partition), ["topology", "features"], made.path)
        with Registered(kernels, made.memory), Registered(kernels, opened.memory) as registered:
            assert registered.address_of(opened.arrays["part1/nodes/0/x.npy"])
        opened.close()
    made.close()


def test_free_memory_is_known(kernels):
    free = DeviceStore.free_bytes(kernels.device)
    assert free is not None
    assert 0 < free <= torch.cuda.get_device_properties(kernels.device).total_memory
