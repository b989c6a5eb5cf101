"""Cutting a user's graph into parts on disk."""

from glt_lightning.partition.assign import GraphToPartition, PartitionerBase
from glt_lightning.partition.sources import GraphSource, open_source
from glt_lightning.partition.writer import partition_dir, partition_graph

__all__ = [
    "GraphSource",
    "GraphToPartition",
    "PartitionerBase",
    "open_source",
    "partition_dir",
    "partition_graph",
]
