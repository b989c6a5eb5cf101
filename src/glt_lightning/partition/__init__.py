"""Makes a partition folder from a user's data: sources, assignment of nodes to parts, the writing of arrays, hotness, and
copies of folders.

`open_source` recognises what the user has (a PyG data set or `Data`, OGB, tables of Parquet or CSV, ``.npz``, folders
of ``.npy``, scipy) and reads it as a `GraphSource`: blocks of edges and rows, never the whole. `partition_graph` then
works in two stages:

1. ``assign/``: an `Assigner` gives each node a part: random, frequency, metis, streaming, an array or a user's class.
2. ``build/``: edges and rows are sorted on disk into their parts, within ``partition.memory_bytes``; hotness is
   computed (``hotness.py``); the folder gets its final name when it is whole. The work is tasks (``tasks/``,
   docs/decisions/026), run by processes of this host or by a cluster.

A killed run leaves no folder under the final name, and the next one continues it. ``arrays.py`` writes and hashes
arrays, ``verify.py`` checks a folder against the hashes in its manifest, ``copies.py`` fetches one from elsewhere.

Rows that come later are `Versions` beside the folder (``versions.py``), which `add_rows` lays over it in memory. What is
asked of a graph, `GraphFacts` answer before it is partitioned, too; what its user calls nodes, `ConvertedTables`.

Runs in the first rank of each host before training, or by the command ``partition``.

Example:
    >>> from glt_lightning.partition import open_source, partition_graph
    >>> from glt_lightning.base import PartitionOptions
    >>> source, options = open_source("graph.npz", "data"), PartitionOptions(num_parts=2)
    >>> partition_graph(source, "face", options, progress=False).num_parts
    2
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    from glt_lightning.partition.additions import (
        Additions as Additions,
        ChangedNodes as ChangedNodes,
        NewEdges as NewEdges,
        NewNodes as NewNodes,
    )
    from glt_lightning.partition.assign.assigners import GivenAccesses as GivenAccesses
    from glt_lightning.partition.assign.base import (
        Assigner as Assigner,
        GraphToPartition as GraphToPartition,
    )
    from glt_lightning.partition.build.hotness import inclusion_in_memory as inclusion_in_memory
    from glt_lightning.partition.compact import compact_partition as compact_partition
    from glt_lightning.partition.contents import (
        Contents as Contents,
        mapped_memory as mapped_memory,
    )
    from glt_lightning.partition.copies import (
        CopySource as CopySource,
        pull_partition as pull_partition,
    )
    from glt_lightning.partition.edge_splits.read import read_edge_split as read_edge_split
    from glt_lightning.partition.edge_splits.source import hold_out_edges as hold_out_edges
    from glt_lightning.partition.facts import GraphFacts as GraphFacts
    from glt_lightning.partition.folder import whole_file as whole_file
    from glt_lightning.partition.forget import Forgetting as Forgetting
    from glt_lightning.partition.grow import (
        add_rows as add_rows,
        check_rows as check_rows,
    )
    from glt_lightning.partition.in_memory import partition_in_memory as partition_in_memory
    from glt_lightning.partition.links import (
        LinkSplit as LinkSplit,
        joined_by as joined_by,
        random_link_split as random_link_split,
    )
    from glt_lightning.partition.plan import (
        PartitionPlan as PartitionPlan,
        plan_partition as plan_partition,
    )
    from glt_lightning.partition.run import assign_graph as assign_graph
    from glt_lightning.partition.sources.base import (
        ArraySource as ArraySource,
        GraphSource as GraphSource,
        array_fingerprint as array_fingerprint,
    )
    from glt_lightning.partition.sources.files import load_saved as load_saved
    from glt_lightning.partition.sources.npz import (
        host_array as host_array,
        take_splits as take_splits,
    )
    from glt_lightning.partition.sources.open import (
        data_name as data_name,
        is_tables as is_tables,
        open_source as open_source,
    )
    from glt_lightning.partition.sources.pyg import array_of as array_of
    from glt_lightning.partition.sources.tables.columns import user_ids as user_ids
    from glt_lightning.partition.sources.tables.converted import ConvertedTables as ConvertedTables
    from glt_lightning.partition.sources.tables.later import LaterTables as LaterTables
    from glt_lightning.partition.sources.tables.mapping import is_text as is_text
    from glt_lightning.partition.splits import check_overlap as check_overlap
    from glt_lightning.partition.tasks.array import array_number as array_number
    from glt_lightning.partition.verify import (
        hash_partition as hash_partition,
        verify_partition as verify_partition,
    )
    from glt_lightning.partition.versions import (
        Appended as Appended,
        Versions as Versions,
        append_rows as append_rows,
        delete_rows as delete_rows,
        list_versions as list_versions,
        open_version as open_version,
    )
    from glt_lightning.partition.writer import (
        follow_batches as follow_batches,
        partition_dir as partition_dir,
        partition_graph as partition_graph,
    )


__all__ = [
    "Additions",
    "Assigner",
    "ChangedNodes",
    "GraphSource",
    "GraphToPartition",
    "LinkSplit",
    "NewEdges",
    "NewNodes",
    "add_rows",
    "append_rows",
    "assign_graph",
    "compact_partition",
    "delete_rows",
    "hold_out_edges",
    "open_source",
    "open_version",
    "partition_dir",
    "partition_graph",
    "plan_partition",
    "random_link_split",
]

__getattr__, __dir__ = lazy_names(__name__)
