"""Every native operation, on the host and on a GPU, behind one loader of the native libraries.

This is the only room that uses ``ctypes``. An operation is one function here that checks its arguments and calls the C
ABI of ``cuda/include/glt/api.h``; its twin for a GPU lies in ``kernels/cuda/`` and takes tensors on a device instead of
numpy arrays. Both draw the same numbers: what a node draws depends on (batch key, hop, edge type, node, draw) alone.
The reference of each operation in plain torch is in ``tests/reference/`` and is normative: results are equal, not
close.

Kernels own nothing: the caller allocates outputs and workspace, ids and offsets are int64, and an optional output is a
null pointer. Native code writes no files and starts no threads, but for METIS, which runs in a process of its own
because it may end its process (``kernels/metis/``).

Runs wherever batches are made: in sampler processes, graph servers, and ranks without workers. Host operations need
numpy alone.

Example:
    >>> from glt_lightning.kernels import pick_uniform
    >>> pick_uniform.__name__  # a picker of neighbours, for options.picker
    'pick_uniform'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    from glt_lightning.kernels import child as child
    from glt_lightning.kernels.activation import (
        relu_dropout as relu_dropout,
        relu_dropout_grad as relu_dropout_grad,
    )
    from glt_lightning.kernels.aggregate import (
        KINDS as KINDS,
        VALUES as VALUES,
        Edges as Edges,
    )
    from glt_lightning.kernels.assign import (
        Labels as Labels,
        NeighborRows as NeighborRows,
        NeighborSums as NeighborSums,
        PairTable as PairTable,
    )
    from glt_lightning.kernels.build import (
        CHANGED as CHANGED,
        Buckets as Buckets,
        RowBuffers as RowBuffers,
        build_rows as build_rows,
        count_ids as count_ids,
    )
    from glt_lightning.kernels.child import (
        adopt_orphans as adopt_orphans,
        terminate_with as terminate_with,
        wake_with_parent as wake_with_parent,
    )
    from glt_lightning.kernels.cuda.aggregate import (
        CudaEdges as CudaEdges,
    )
    from glt_lightning.kernels.cuda.excluded import (
        DeviceExcluded as DeviceExcluded,
    )
    from glt_lightning.kernels.cuda.gather import (
        CudaShards as CudaShards,
        RowsAt as RowsAt,
    )
    from glt_lightning.kernels.cuda.graph import (
        DeviceGraph as DeviceGraph,
        GraphAddresses as GraphAddresses,
    )
    from glt_lightning.kernels.cuda.induce import (
        ENTRY_BYTES as ENTRY_BYTES,
        Between as Between,
        LidEdges as LidEdges,
        stored_between as stored_between,
    )
    from glt_lightning.kernels.cuda.kernels import (
        Kernels as Kernels,
        read as read,
    )
    from glt_lightning.kernels.cuda.khop import (
        CudaKHopOp as CudaKHopOp,
    )
    from glt_lightning.kernels.cuda.khop_batch import (
        HostCopy as HostCopy,
    )
    from glt_lightning.kernels.cuda.khop_steps import (
        DeviceHops as DeviceHops,
        Frontier as Frontier,
        RemoteParts as RemoteParts,
    )
    from glt_lightning.kernels.cuda.memory import (
        Registered as Registered,
    )
    from glt_lightning.kernels.cuda.merge import (
        Piece as Piece,
    )
    from glt_lightning.kernels.cuda.relabel import (
        DeviceLids as DeviceLids,
    )
    from glt_lightning.kernels.cuda.stream import (
        Mark as Mark,
        SideStream as SideStream,
        wait_for as wait_for,
    )
    from glt_lightning.kernels.cuda.subgraph import (
        DeviceSubgraph as DeviceSubgraph,
    )
    from glt_lightning.kernels.cuda.sums import (
        CudaNeighborSums as CudaNeighborSums,
    )
    from glt_lightning.kernels.cuda.walks import (
        DeviceWalks as DeviceWalks,
        Visited as Visited,
        device_streams as device_streams,
        most_visited as most_visited,
    )
    from glt_lightning.kernels.disk import (
        PAGE as PAGE,
        DiskFile as DiskFile,
        DiskRead as DiskRead,
        DiskRows as DiskRows,
        ReadSlots as ReadSlots,
    )
    from glt_lightning.kernels.edge_lookup import (
        has_edges as has_edges,
        require_pairs as require_pairs,
    )
    from glt_lightning.kernels.edge_order import (
        by_source as by_source,
        column_pointers as column_pointers,
        split_by_source as split_by_source,
    )
    from glt_lightning.kernels.embedding import (
        Adjust as Adjust,
        RowSums as RowSums,
        adagrad_rows as adagrad_rows,
        adam_rows as adam_rows,
        merge_rows as merge_rows,
        row_squares as row_squares,
        sgd_rows as sgd_rows,
    )
    from glt_lightning.kernels.encoding import (
        BFLOAT16 as BFLOAT16,
        ENCODINGS as ENCODINGS,
        Encoding as Encoding,
        from_bfloat16 as from_bfloat16,
        to_bfloat16 as to_bfloat16,
    )
    from glt_lightning.kernels.excluded import (
        ExcludedEdges as ExcludedEdges,
        ExcludedEntries as ExcludedEntries,
        Pairs as Pairs,
        is_excluded as is_excluded,
    )
    from glt_lightning.kernels.file_map import (
        forget_losses as forget_losses,
        guarded as guarded,
        map_file as map_file,
        map_limit as map_limit,
    )
    from glt_lightning.kernels.gather import (
        OnDisk as OnDisk,
        Shards as Shards,
    )
    from glt_lightning.kernels.graph import (
        EdgeTypeArrays as EdgeTypeArrays,
        GraphView as GraphView,
        LaborIds as LaborIds,
    )
    from glt_lightning.kernels.hops import (
        AllLocal as AllLocal,
        Expands as Expands,
        run_hops as run_hops,
    )
    from glt_lightning.kernels.induced import (
        Among as Among,
        induce as induce,
        induce_all as induce_all,
        joined as joined,
    )
    from glt_lightning.kernels.khop import (
        KHopOp as KHopOp,
        Subgraph as Subgraph,
        widen as widen,
    )
    from glt_lightning.kernels.malloc import (
        keep_freed_memory as keep_freed_memory,
    )
    from glt_lightning.kernels.merge import (
        BatchBuilder as BatchBuilder,
        Drawn as Drawn,
        Picks as Picks,
        require_seeds as require_seeds,
    )
    from glt_lightning.kernels.metis.library import (
        MetisGraph as MetisGraph,
        metis_parts as metis_parts,
    )
    from glt_lightning.kernels.mix import (
        GOLDEN as GOLDEN,
        hop_key as hop_key,
        mix64 as mix64,
    )
    from glt_lightning.kernels.native import (
        address_of as address_of,
        lend as lend,
        view_of as view_of,
    )
    from glt_lightning.kernels.picker_draw import (
        PickableRows as PickableRows,
        PickerDraw as PickerDraw,
        picked as picked,
        require_pure as require_pure,
    )
    from glt_lightning.kernels.ranges import (
        entries_of as entries_of,
        spread as spread,
    )
    from glt_lightning.kernels.ranked_set import (
        RankedSet as RankedSet,
    )
    from glt_lightning.kernels.relabelling import (
        relabel as relabel,
    )
    from glt_lightning.kernels.route import (
        Route as Route,
        Router as Router,
    )
    from glt_lightning.kernels.row_size import (
        row_bytes as row_bytes,
    )
    from glt_lightning.kernels.row_view import (
        Picker as Picker,
        RowView as RowView,
        pick_uniform as pick_uniform,
    )
    from glt_lightning.kernels.sample import (
        RowDraw as RowDraw,
    )
    from glt_lightning.kernels.tiered import (
        TieredShards as TieredShards,
    )
    from glt_lightning.kernels.trees import (
        Trees as Trees,
        is_tree as is_tree,
    )
    from glt_lightning.kernels.walks import (
        MOST_STEPS as MOST_STEPS,
        WalkRule as WalkRule,
        Walks as Walks,
        count_visits as count_visits,
        user_ids as user_ids,
        walk_streams as walk_streams,
    )

# What users and other rooms ask for, by the module that defines it
_MODULES = {
    "activation": (
        "relu_dropout",
        "relu_dropout_grad",
    ),
    "aggregate": (
        "Edges",
        "KINDS",
        "VALUES",
    ),
    "assign": (
        "Labels",
        "NeighborRows",
        "NeighborSums",
        "PairTable",
    ),
    "build": (
        "Buckets",
        "CHANGED",
        "RowBuffers",
        "build_rows",
        "count_ids",
    ),
    "child": (
        "adopt_orphans",
        "child",
        "terminate_with",
        "wake_with_parent",
    ),
    "cuda.aggregate": ("CudaEdges",),
    "cuda.excluded": ("DeviceExcluded",),
    "cuda.gather": (
        "CudaShards",
        "RowsAt",
    ),
    "cuda.graph": (
        "DeviceGraph",
        "GraphAddresses",
    ),
    "cuda.induce": (
        "Between",
        "ENTRY_BYTES",
        "LidEdges",
        "stored_between",
    ),
    "cuda.kernels": (
        "Kernels",
        "read",
    ),
    "cuda.khop": ("CudaKHopOp",),
    "cuda.khop_batch": ("HostCopy",),
    "cuda.khop_steps": (
        "DeviceHops",
        "Frontier",
        "RemoteParts",
    ),
    "cuda.memory": ("Registered",),
    "cuda.merge": ("Piece",),
    "cuda.relabel": ("DeviceLids",),
    "cuda.stream": (
        "Mark",
        "SideStream",
        "wait_for",
    ),
    "cuda.subgraph": ("DeviceSubgraph",),
    "cuda.sums": ("CudaNeighborSums",),
    "cuda.walks": (
        "DeviceWalks",
        "Visited",
        "device_streams",
        "most_visited",
    ),
    "disk": (
        "DiskFile",
        "DiskRead",
        "DiskRows",
        "PAGE",
        "ReadSlots",
    ),
    "edge_lookup": (
        "has_edges",
        "require_pairs",
    ),
    "edge_order": (
        "by_source",
        "column_pointers",
        "split_by_source",
    ),
    "embedding": (
        "Adjust",
        "RowSums",
        "adagrad_rows",
        "adam_rows",
        "merge_rows",
        "row_squares",
        "sgd_rows",
    ),
    "encoding": (
        "BFLOAT16",
        "ENCODINGS",
        "Encoding",
        "from_bfloat16",
        "to_bfloat16",
    ),
    "excluded": (
        "ExcludedEdges",
        "ExcludedEntries",
        "Pairs",
        "is_excluded",
    ),
    "file_map": (
        "forget_losses",
        "guarded",
        "map_file",
        "map_limit",
    ),
    "gather": (
        "OnDisk",
        "Shards",
    ),
    "graph": (
        "EdgeTypeArrays",
        "GraphView",
        "LaborIds",
    ),
    "hops": (
        "AllLocal",
        "Expands",
        "run_hops",
    ),
    "induced": (
        "Among",
        "induce",
        "induce_all",
        "joined",
    ),
    "khop": (
        "KHopOp",
        "Subgraph",
        "widen",
    ),
    "malloc": ("keep_freed_memory",),
    "merge": (
        "BatchBuilder",
        "Drawn",
        "Picks",
        "require_seeds",
    ),
    "metis.library": (
        "MetisGraph",
        "metis_parts",
    ),
    "mix": (
        "GOLDEN",
        "hop_key",
        "mix64",
    ),
    "native": (
        "address_of",
        "lend",
        "view_of",
    ),
    "picker_draw": (
        "PickableRows",
        "PickerDraw",
        "picked",
        "require_pure",
    ),
    "ranges": (
        "entries_of",
        "spread",
    ),
    "ranked_set": ("RankedSet",),
    "relabelling": ("relabel",),
    "route": (
        "Route",
        "Router",
    ),
    "row_size": ("row_bytes",),
    "row_view": (
        "Picker",
        "RowView",
        "pick_uniform",
    ),
    "sample": ("RowDraw",),
    "tiered": ("TieredShards",),
    "trees": (
        "Trees",
        "is_tree",
    ),
    "walks": (
        "MOST_STEPS",
        "WalkRule",
        "Walks",
        "count_visits",
        "user_ids",
        "walk_streams",
    ),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}

__all__ = ["Picker", "RowView", "pick_uniform"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
