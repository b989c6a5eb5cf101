"""Ranks of several hosts as threads of this process, with tables over all of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from glt_lightning.base import DeadlineOptions, TensorOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.tensors import GraphReader, Reach, SharedTables
from glt_lightning.tensors.home import LazyHomes
from glt_lightning.tensors.space import Homes
from glt_lightning.workers import Link, Ranks
from glt_lightning.workers.transport.peer import Retry
from tests.helpers.in_process import InProcessNetwork

QUICK = {"deadlines": DeadlineOptions(call_s=10, reconnect_s=10), "retry": Retry(first_s=0.001, most_s=0.01)}


def link_of(rank: int, **options: Any) -> Link:
    return Link(**{"job": "mine", "role": "worker", "name": f"rank {rank}", **QUICK, **options})


def open_tables(
    partition: LocalPartition,
    rank: int,
    exchange: Callable[[str], list[str]],
    world: int,
    *,
    hosts: int = 1,
    network: InProcessNetwork | None = None,
    link: Link | None = None,
    **options: Any,
) -> tuple[SharedTables, ExitStack]:
    """The tables of a rank, on host ``rank mod hosts``, and what closes them."""
    ranks, closing = Ranks(rank, world, exchange), ExitStack()
    homes = Homes.agree(ranks, partition.manifest.num_parts, partition.parts, f"host{rank % hosts}")
    remote = None
    if network is not None and homes.num_hosts > 1:
        place = f"host{rank % hosts}"
        reach = Reach(place, link or link_of(rank), lambda: f"{place}:0", lambda: network)
        remote = LazyHomes(ranks, homes, reach)
        closing.callback(remote.close)
    user_ids = GraphReader.of(partition).user_ids_of_part
    tables = SharedTables(ranks, homes, user_ids, options=TensorOptions(**options), remote=remote)
    closing.callback(tables.close)
    return tables, closing
