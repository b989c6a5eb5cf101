"""The processes that make batches, and their communication: this process, sampler processes, other ranks and graph
servers; slots of shared memory and Arrow Flight.

**Processes.** A rank is a Lightning process. With ``sampling.num_workers: K`` it starts K sampler processes and has a
socket pair with each: requests are sent, layouts are received; the batch itself lies in a slot, a memfd that both map
(docs/decisions/002). There is no thread and no lock between them. A sampler ends when its socket does, and the kernel
kills it when its trainer ends.

* ``producer/``: the producers of `Sample`s: inline, a pool of sampler processes, the GPU that trains; and `SampledGraph`,
  a graph that opens the producer of its batches (docs/decisions/014): `MappedGraph`, and `HostsGraph`, whose ranks sample
  for each other.
* ``cluster/``: an `Owner` serves parts, `PeerRows` asks owners; the filling of remote caches.
* ``server/``: a graph server is a process with samplers of its own. Its scheduler's thread owns samplers, slots and
  client sessions; the transport's threads check clients' messages and call that thread. On one host batches are handed
  over as slots (docs/decisions/005).
* ``transport/``: requests, replies and streams as `Message`s over Arrow Flight, with credentials, deadlines and shares
  of memory for each client (docs/wire-format.md). A lease distinguishes a dead peer from a slow one: a peer that does
  not renew it counts as dead, and the error names it.
* ``slots.py``: recycled memory of batches, private or in a memfd. A slot goes back to its pool when the last tensor
  over it is freed.

Example:
    >>> from glt_lightning.workers import Slot
    >>> slot = Slot(0)
    >>> slot.reserve(1000)
    >>> slot.capacity >= 1000
    True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    from glt_lightning.workers.cluster.device_fill import read_rows as read_rows
    from glt_lightning.workers.cluster.graph import (
        ClusterGraph as ClusterGraph,
        DistContext as DistContext,
        RemoteGraph as RemoteGraph,
        Role as Role,
        placed_parts as placed_parts,
    )
    from glt_lightning.workers.cluster.link import (
        Link as Link,
        Silence as Silence,
    )
    from glt_lightning.workers.cluster.owner import ask_status as ask_status
    from glt_lightning.workers.cluster.remote_rows import (
        Asked as Asked,
        CountingOwners as CountingOwners,
    )
    from glt_lightning.workers.cluster.timing import time_calls as time_calls
    from glt_lightning.workers.producer.base import (
        Producer as Producer,
        ProducerSetup as ProducerSetup,
        Ranks as Ranks,
        SampledGraph as SampledGraph,
        with_channel_bytes as with_channel_bytes,
    )
    from glt_lightning.workers.producer.mapped import (
        HostsGraph as HostsGraph,
        MappedGraph as MappedGraph,
    )
    from glt_lightning.workers.producer.process import (
        end_by_deadline as end_by_deadline,
        spare_samplers as spare_samplers,
    )
    from glt_lightning.workers.producer.samplers import (
        InlineProducer as InlineProducer,
        batches_in_flight as batches_in_flight,
    )
    from glt_lightning.workers.server.handover import place_identity as place_identity
    from glt_lightning.workers.server.hosted import (
        HostedServer as HostedServer,
        ServerPlan as ServerPlan,
    )
    from glt_lightning.workers.server.process import ServerProcess as ServerProcess
    from glt_lightning.workers.server.served import ServedGraph as ServedGraph
    from glt_lightning.workers.slots import (
        PinMemory as PinMemory,
        Slot as Slot,
    )
    from glt_lightning.workers.transport.base import (
        PROTOCOL as PROTOCOL,
        Caller as Caller,
        Transport as Transport,
    )
    from glt_lightning.workers.transport.certs import (
        CertificateFolder as CertificateFolder,
        JobAuthority as JobAuthority,
        run_certs as run_certs,
    )
    from glt_lightning.workers.transport.message import (
        DTYPES as DTYPES,
        Message as Message,
    )
    from glt_lightning.workers.transport.peer import Peer as Peer


__all__ = [
    "PinMemory",
    "Slot",
]

__getattr__, __dir__ = lazy_names(__name__)
