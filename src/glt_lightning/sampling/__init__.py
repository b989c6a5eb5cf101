"""Makes a `Sample` from seeds and a key: the epoch plan, the k-hop loop, links, subgraphs, walks, and the questions to
owners.

An `EpochPlan` shuffles and splits the seeds of an epoch into `BatchRequest`s: a pure function of (seed, epoch, rank,
world size), so that a run resumes in mid-epoch exactly. `KHopSampler` turns a request into a `Sample`: named arrays in
one slot of memory. The loop itself is `k_hop`; it asks a **neighbour source** for neighbours and attributes and knows
neither processes nor devices:

* ``host_source.py``: mapped parts, one native call for all hops;
* ``device_neighbors.py``: the same on a GPU;
* ``routed_source.py``: own and remote parts. Each hop is routed to the owners of its rows, each owner is asked once,
  own rows are drawn meanwhile, and the answers are stitched in the order of the frontier (docs/decisions/004).

An owner answers five questions: expand (neighbours), gather (rows), has_edges, induce (edges among nodes) and walk.
They carry the key of the batch, so an answer does not depend on who asks or when.

Runs in sampler processes, graph servers, and ranks without workers. Needs numpy alone, except for ``device_*.py``.

Example:
    >>> import numpy as np
    >>> from glt_lightning.sampling import EpochPlan
    >>> plan = EpochPlan(seeds=np.arange(10), batch_size=2, seed=0, loader="train", rank=1, world_size=2)
    >>> len(plan), len(list(plan.requests(epoch=0)))
    (3, 3)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    from glt_lightning.sampling.assemble import require_aggregable as require_aggregable
    from glt_lightning.sampling.counters import Counters as Counters
    from glt_lightning.sampling.device_draft import GpuSamplers as GpuSamplers
    from glt_lightning.sampling.device_source import DeviceSource as DeviceSource
    from glt_lightning.sampling.drawn_by import drawn_on_gpu as drawn_on_gpu
    from glt_lightning.sampling.draws import role_key as role_key
    from glt_lightning.sampling.importance_task import (
        ImportanceTask as ImportanceTask,
        fault_of as fault_of,
    )
    from glt_lightning.sampling.joined import join_samples as join_samples
    from glt_lightning.sampling.khop import (
        KHopSampler as KHopSampler,
        k_hop as k_hop,
        neighbor_source as neighbor_source,
    )
    from glt_lightning.sampling.link_task import LinkTask as LinkTask
    from glt_lightning.sampling.links import split_by_type as split_by_type
    from glt_lightning.sampling.negatives import (
        DrawnTrials as DrawnTrials,
        NodeWeights as NodeWeights,
        key_of_type as key_of_type,
    )
    from glt_lightning.sampling.own_batches import (
        BatchSampler as BatchSampler,
        OwnBatches as OwnBatches,
    )
    from glt_lightning.sampling.plan import (
        EpochPlan as EpochPlan,
        permutation as permutation,
    )
    from glt_lightning.sampling.questions import QUESTIONS as QUESTIONS
    from glt_lightning.sampling.questions.expand import Expand as Expand
    from glt_lightning.sampling.questions.gather import (
        AskedRows as AskedRows,
        Gather as Gather,
    )
    from glt_lightning.sampling.questions.has_edges import HasEdges as HasEdges
    from glt_lightning.sampling.request import (
        BatchRequest as BatchRequest,
        SamplerConfig as SamplerConfig,
        batch_key as batch_key,
        fanout_table as fanout_table,
        shuffle_key as shuffle_key,
    )
    from glt_lightning.sampling.sample import (
        Draft as Draft,
        Placed as Placed,
        Sample as Sample,
    )
    from glt_lightning.sampling.source import (
        Arrays as Arrays,
        InconsistentReplyError as InconsistentReplyError,
        OwnedParts as OwnedParts,
        OwnerQuestion as OwnerQuestion,
        Received as Received,
        RemoteRows as RemoteRows,
        Reply as Reply,
        converse as converse,
        wire_dtype as wire_dtype,
    )
    from glt_lightning.sampling.subgraph_task import SubgraphTask as SubgraphTask
    from glt_lightning.sampling.table import (
        RowTable as RowTable,
        ask_owners as ask_owners,
    )
    from glt_lightning.sampling.walks import (
        WalkStart as WalkStart,
        walk_through as walk_through,
    )


__all__ = ["BatchRequest", "BatchSampler", "Draft", "EpochPlan", "Sample", "SamplerConfig"]

__getattr__, __dir__ = lazy_names(__name__)
