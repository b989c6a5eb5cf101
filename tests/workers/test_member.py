"""Which owner has which part, and at which of its addresses each process asks first."""

from types import SimpleNamespace

import pytest

from glt_lightning.base import PartitionError
from glt_lightning.graph import LocalPartition
from glt_lightning.workers.cluster.owner import OwnerAddresses, connect_owners
from tests.helpers.partitions import partitioned, small_graph

LINK = SimpleNamespace(name="rank 0", peer=lambda name, addresses, transport: (name, addresses))
OWNERS = [OwnerAddresses("rank 1", (0, 1), ("a", "b", "c")), OwnerAddresses("rank 2", (1, 2), ("d",))]


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> LocalPartition:
    folder = partitioned(small_graph(), tmp_path_factory.mktemp("graph"), 3).directory
    return LocalPartition.open(folder, parts=[0])


@pytest.mark.parametrize(("turn", "first"), [(0, ("a", "b", "c")), (1, ("b", "c", "a")), (5, ("c", "a", "b"))])
def test_processes_share_the_addresses_of_an_owner(here, turn, first):
    """Each begins with another one, so that no sampler process of the owner has all the work."""
    rows = connect_owners(here, OWNERS, LINK, None, turn)
    assert rows.peers == [("rank 1", first), ("rank 2", ("d",))]
    assert rows.owner_of_part.tolist() == [0, 1, 2]  # of two owners of a part the first is asked


def test_a_part_without_an_owner_is_named(here):
    with pytest.raises(PartitionError, match=r"part 2 of 3.*rank 0.*rank 1"):
        connect_owners(here, OWNERS[:1], LINK, None)
