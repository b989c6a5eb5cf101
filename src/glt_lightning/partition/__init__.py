"""Partitions a user's graph into parts on disk."""

from glt_lightning.partition.assign import Assigner, GraphToPartition
from glt_lightning.partition.assign_graph import assign_graph
from glt_lightning.partition.edge_splits.source import hold_out_edges
from glt_lightning.partition.link_split import LinkSplit, random_link_split
from glt_lightning.partition.parts_folder import complete_partition
from glt_lightning.partition.sources import GraphSource, open_source
from glt_lightning.partition.writer import partition_dir, partition_graph, partition_parts

__all__ = [
    "Assigner",
    "GraphSource",
    "GraphToPartition",
    "LinkSplit",
    "assign_graph",
    "complete_partition",
    "hold_out_edges",
    "open_source",
    "partition_dir",
    "partition_graph",
    "partition_parts",
    "random_link_split",
]
