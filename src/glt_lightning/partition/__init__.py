"""Cutting a user's graph into parts on disk."""

from glt_lightning.partition.assign import GraphToPartition
from glt_lightning.partition.scripted import (
    MetisPartitioner,
    PartitionerBase,
    RandomPartitioner,
    StreamingPartitioner,
)
from glt_lightning.partition.scripted_frequency import FrequencyPartitioner
from glt_lightning.partition.sources import GraphSource, open_source
from glt_lightning.partition.writer import partition_dir, partition_graph

__all__ = [
    "FrequencyPartitioner",
    "GraphSource",
    "GraphToPartition",
    "MetisPartitioner",
    "PartitionerBase",
    "RandomPartitioner",
    "StreamingPartitioner",
    "open_source",
    "partition_dir",
    "partition_graph",
]
