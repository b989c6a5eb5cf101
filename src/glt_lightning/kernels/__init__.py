"""Every native operation, on the host and on a GPU, behind one loader of the native libraries.

This is the only package that uses ``ctypes``. An operation is one function here that checks its arguments and calls the C
ABI of ``cuda/include/glt/api.h``; its twin for a GPU lies in ``kernels/cuda/`` and takes tensors on a device instead of
numpy arrays. Both draw the same numbers: what a node draws depends on (batch key, hop, edge type, node, draw) alone.
The reference of each operation in plain torch is in ``tests/reference/`` and is normative: results are equal, not
close.

Kernels own nothing: the caller allocates outputs and workspace, ids and offsets are int64, and an optional output is a
null pointer. Native code writes no files, and its threads end with the call. METIS runs in a process of its own
(``kernels/metis/``), because it may end its process.

Runs wherever batches are made: in sampler processes, graph servers, and ranks without workers. Host operations need
numpy alone.

Example:
    >>> from glt_lightning.kernels import pick_uniform
    >>> pick_uniform.__name__  # draws for a user's picker (sampling.picker)
    'pick_uniform'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    from glt_lightning.kernels import child as child
    from glt_lightning.kernels.aggregate import (
        KINDS as KINDS,
        VALUES as VALUES,
        Edges as Edges,
        relu_dropout as relu_dropout,
        relu_dropout_grad as relu_dropout_grad,
    )
    from glt_lightning.kernels.assign import (
        LabelPairs as LabelPairs,
        Labels as Labels,
        NeighborRows as NeighborRows,
        NeighborSums as NeighborSums,
    )
    from glt_lightning.kernels.build import (
        BFLOAT16 as BFLOAT16,
        CHANGED as CHANGED,
        ENCODINGS as ENCODINGS,
        Buckets as Buckets,
        Encoding as Encoding,
        RowBuffers as RowBuffers,
        build_rows as build_rows,
        by_source as by_source,
        column_pointers as column_pointers,
        count_ids as count_ids,
        from_bfloat16 as from_bfloat16,
        sort_keys as sort_keys,
        split_by_source as split_by_source,
        to_bfloat16 as to_bfloat16,
    )
    from glt_lightning.kernels.child import (
        adopt_orphans as adopt_orphans,
        terminate_with as terminate_with,
        wake_with_parent as wake_with_parent,
    )
    from glt_lightning.kernels.cuda.graph import (
        DeviceGraph as DeviceGraph,
        GraphAddresses as GraphAddresses,
        Registered as Registered,
    )
    from glt_lightning.kernels.cuda.khop import CudaKHopOp as CudaKHopOp
    from glt_lightning.kernels.cuda.khop_steps import (
        DeviceHops as DeviceHops,
        Frontier as Frontier,
        RemoteParts as RemoteParts,
    )
    from glt_lightning.kernels.cuda.merge import Piece as Piece
    from glt_lightning.kernels.cuda.relabel import DeviceLids as DeviceLids
    from glt_lightning.kernels.cuda.rows import (
        CudaEdges as CudaEdges,
        CudaShards as CudaShards,
        RowsAt as RowsAt,
    )
    from glt_lightning.kernels.cuda.stream import (
        Kernels as Kernels,
        Mark as Mark,
        SideStream as SideStream,
        wait_for as wait_for,
    )
    from glt_lightning.kernels.cuda.subgraph import (
        Between as Between,
        DeviceExcluded as DeviceExcluded,
        DeviceSubgraph as DeviceSubgraph,
        LidEdges as LidEdges,
    )
    from glt_lightning.kernels.cuda.walks import (
        DeviceWalks as DeviceWalks,
        Visited as Visited,
    )
    from glt_lightning.kernels.disk import (
        DiskFile as DiskFile,
        DiskRead as DiskRead,
        ReadSlots as ReadSlots,
    )
    from glt_lightning.kernels.embedding import (
        Adjust as Adjust,
        RowSums as RowSums,
    )
    from glt_lightning.kernels.excluded import (
        ExcludedEdges as ExcludedEdges,
        ExcludedEntries as ExcludedEntries,
        Pairs as Pairs,
    )
    from glt_lightning.kernels.file_map import (
        forget_losses as forget_losses,
        guarded as guarded,
        map_file as map_file,
        map_limit as map_limit,
    )
    from glt_lightning.kernels.graph import (
        EdgeTypeArrays as EdgeTypeArrays,
        GraphView as GraphView,
        LaborIds as LaborIds,
        Overlaid as Overlaid,
        ReplacedRows as ReplacedRows,
    )
    from glt_lightning.kernels.hops import (
        Expands as Expands,
        run_hops as run_hops,
    )
    from glt_lightning.kernels.induced import Among as Among
    from glt_lightning.kernels.khop import (
        KHopOp as KHopOp,
        Subgraph as Subgraph,
        relabel as relabel,
        widen as widen,
    )
    from glt_lightning.kernels.metis.library import (
        MetisGraph as MetisGraph,
        metis_parts as metis_parts,
    )
    from glt_lightning.kernels.mix import (
        hop_key as hop_key,
        keyed as keyed,
        mix64 as mix64,
    )
    from glt_lightning.kernels.native import (
        address_of as address_of,
        keep_freed_memory as keep_freed_memory,
        lend as lend,
        view_of as view_of,
    )
    from glt_lightning.kernels.picker import (
        PickableRows as PickableRows,
        Picker as Picker,
        PickerDraw as PickerDraw,
        RowView as RowView,
        pick_uniform as pick_uniform,
        probe as probe,
    )
    from glt_lightning.kernels.ranked_set import RankedSet as RankedSet
    from glt_lightning.kernels.routing import (
        BatchBuilder as BatchBuilder,
        Drawn as Drawn,
        Picks as Picks,
        Route as Route,
        Router as Router,
    )
    from glt_lightning.kernels.rows import (
        OnDisk as OnDisk,
        Shards as Shards,
        TieredShards as TieredShards,
        copy_runs as copy_runs,
        entries_of as entries_of,
        row_bytes as row_bytes,
        spread as spread,
    )
    from glt_lightning.kernels.sample import RowDraw as RowDraw
    from glt_lightning.kernels.trees import Trees as Trees
    from glt_lightning.kernels.walks import (
        WalkRule as WalkRule,
        Walks as Walks,
    )


__all__ = ["Picker", "RowView", "pick_uniform"]

__getattr__, __dir__ = lazy_names(__name__)
