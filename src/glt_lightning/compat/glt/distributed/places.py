"""Where the batches of a loader are made: the graph as this process has it, and who samples."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch

from glt_lightning.base import ClusterOptions, NodeType, OptionError
from glt_lightning.compat.glt.distributed.client import remote_labels
from glt_lightning.compat.glt.distributed.dataset import DistDataset
from glt_lightning.compat.glt.distributed.in_memory import collect_parts
from glt_lightning.compat.glt.distributed.options import (
    AnyWorkerOptions,
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from glt_lightning.compat.glt.distributed.session import Membership, current, required
from glt_lightning.compat.glt.feature import usable_device
from glt_lightning.compat.glt.fields import Lookup, lookup_in
from glt_lightning.graph import LocalPartition
from glt_lightning.workers import HostsGraph, Ranks, SampledGraph, ServedGraph, end_by_deadline


@dataclass(frozen=True)
class Place:
    """sampling: options that follow from who samples."""

    graph: LocalPartition | SampledGraph
    ranks: Ranks
    labels: Lookup | None = None
    labelled: frozenset[NodeType] = frozenset()
    sampling: dict[str, Any] = field(default_factory=dict)
    edge_ids: Any = None  # of `GLTFields`


def place_of(data: Any, options: AnyWorkerOptions) -> Place:
    """A collective call, of all processes with this one's role."""
    if isinstance(options, RemoteDistSamplingWorkerOptions):
        return _served(options)
    if not isinstance(data, DistDataset):
        raise OptionError(
            f"data: expected a DistDataset, got {type(data).__name__}. Only RemoteDistSamplingWorkerOptions do without."
        )
    session = current()
    if session is not None and not session.context.is_worker():
        raise OptionError(
            f"worker_options: {type(options).__name__} is for workers, and this process is a "
            f"{session.context.role.name.lower()}. Give RemoteDistSamplingWorkerOptions on clients."
        )
    graph, ranks = _mapped(data, options, session)
    own = data.labels_beside
    return Place(
        graph,
        ranks,
        lookup_in(own) if own else None,
        frozenset(own),
        _sampling(options),
        None if data.graph is None else data.fields().edge_ids,
    )


def _mapped(
    data: DistDataset, options: AnyWorkerOptions, session: Membership | None
) -> tuple[LocalPartition | SampledGraph, Ranks]:
    if session is None or session.context.world_size == 1:
        if data.in_memory:
            collect_parts(data)
        return data.map(whole=True), Ranks()
    if not data.in_memory:
        _ = data.folder  # tensors are for one process
    session.timeout_s = options.rpc_timeout
    session.join_workers(*options.address())
    if data.in_memory:
        collect_parts(data)
    assert session.group is not None
    ranks = session.ranks()
    mine = {"parts": list(data.parts), "of": data.num_partitions}
    everyone = [json.loads(text) for text in session.group.exchange(json.dumps(mine))]
    if all(len(each["parts"]) == each["of"] for each in everyone):
        return data.map(whole=True), ranks
    if missing := sorted(set(range(data.num_partitions)) - {p for each in everyone for p in each["parts"]}):
        raise OptionError(
            f"partition_idx: no worker has part {missing[0]} of {data.num_partitions}. Start a worker for each part, or give "
            f"several to one: DistDataset.load(..., partition_idx=[{data.parts[0]}, {missing[0]}])."
        )
    partition = data.map(whole=False)
    link = session.link("worker")
    silence_s = session.cluster.peer_silence_s
    end = end_by_deadline(session.name, session.cluster.peer_timeout_s, "cluster.peer_timeout_s")
    return HostsGraph(partition, link, session.own_host(), end, silence_s), ranks


def _sampling(options: CollocatedDistSamplingWorkerOptions | MpDistSamplingWorkerOptions) -> dict[str, Any]:
    pin: dict[str, Any] = {"pin_memory": options.pin_memory and torch.cuda.is_available()}
    if not options.num_workers:
        return pin
    found = pin | {"num_workers": options.num_workers, "concurrency": options.worker_concurrency}
    found |= {"channel_size": options.channel_size}
    devices = [usable_device(each) for each in options.worker_devices or ()]
    return found | {"worker_devices": [each if ":" in each else f"{each}:0" for each in devices if each != "cpu"]}


def _served(options: RemoteDistSamplingWorkerOptions) -> Place:
    session = required("RemoteDistSamplingWorkerOptions")
    if not session.context.is_client():
        raise OptionError("RemoteDistSamplingWorkerOptions: needs a client. Call init_client first.")
    number = options.server_of(session.context.rank, len(session.peers))
    given = session.cluster
    options_here = ClusterOptions(prefetch=options.prefetch_size, deadlines=given.deadlines)
    graph = ServedGraph(session.peers[number], options_here, servers=session.peers)
    labels, labelled = remote_labels(number)
    return Place(graph, session.ranks(), labels, labelled, {"channel_size": options.buffer_size, "pin_memory": False})
