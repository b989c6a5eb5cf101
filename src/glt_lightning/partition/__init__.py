"""Cutting a user's graph into parts on disk."""

from glt_lightning.partition.assign import GraphToPartition
from glt_lightning.partition.assign_graph import assign_graph
from glt_lightning.partition.parts_folder import complete_partition
from glt_lightning.partition.scripted import (
    MetisPartitioner,
    PartitionerBase,
    RandomPartitioner,
    StreamingPartitioner,
)
from glt_lightning.partition.scripted_frequency import FrequencyPartitioner
from glt_lightning.partition.sources import GraphSource, open_source
from glt_lightning.partition.writer import partition_dir, partition_graph, partition_parts

__all__ = [
    "FrequencyPartitioner",
    "GraphSource",
    "GraphToPartition",
    "MetisPartitioner",
    "PartitionerBase",
    "RandomPartitioner",
    "StreamingPartitioner",
    "assign_graph",
    "complete_partition",
    "open_source",
    "partition_dir",
    "partition_graph",
    "partition_parts",
]
