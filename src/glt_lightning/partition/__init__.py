"""Partitions a user's graph into parts on disk."""

from typing import TYPE_CHECKING

from glt_lightning.lazy import lazy_names
from glt_lightning.partition.assign import GraphToPartition
from glt_lightning.partition.assign_graph import assign_graph
from glt_lightning.partition.edge_splits.source import hold_out_edges
from glt_lightning.partition.link_split import LinkSplit, random_link_split
from glt_lightning.partition.parts_folder import complete_partition
from glt_lightning.partition.sources import GraphSource, open_source
from glt_lightning.partition.writer import partition_dir, partition_graph, partition_parts

if TYPE_CHECKING:
    from glt_lightning.glt.folders import (
        FeaturePartitionData as FeaturePartitionData,
        GLTPartitionBook as GLTPartitionBook,
        GraphPartitionData as GraphPartitionData,
        PartitionBook as PartitionBook,
        RangePartitionBook as RangePartitionBook,
        cat_feature_cache as cat_feature_cache,
        load_partition as load_partition,
    )
    from glt_lightning.glt.frequency import FrequencyPartitioner
    from glt_lightning.glt.partitioners import (
        MetisPartitioner,
        PartitionerBase,
        RandomPartitioner,
        StreamingPartitioner,
    )

_FOLDERS = ("FeaturePartitionData", "GLTPartitionBook", "GraphPartitionData", "PartitionBook", "RangePartitionBook")
_READERS = ("cat_feature_cache", "load_partition")

__all__ = [
    "FrequencyPartitioner",
    "GraphSource",
    "GraphToPartition",
    "LinkSplit",
    "MetisPartitioner",
    "PartitionerBase",
    "RandomPartitioner",
    "StreamingPartitioner",
    "assign_graph",
    "complete_partition",
    "hold_out_edges",
    "open_source",
    "partition_dir",
    "partition_graph",
    "partition_parts",
    "random_link_split",
    *_FOLDERS,
    *_READERS,
]

_PARTITIONERS = ("MetisPartitioner", "PartitionerBase", "RandomPartitioner", "StreamingPartitioner")
_STAGES = (
    "{name}: a part is written once, with its features. Give them to a partitioner, or to partition_parts, which writes the "
    "parts that a host needs."
)
_WRITERS = ("build_partition_feature", "save_edge_pb", "save_feature_partition", "save_graph_partition", "save_node_pb")
__getattr__, __dir__ = lazy_names(
    __name__,
    dict.fromkeys(_PARTITIONERS, "glt_lightning.glt.partitioners")
    | dict.fromkeys((*_FOLDERS, *_READERS), "glt_lightning.glt.folders")
    | {"FrequencyPartitioner": "glt_lightning.glt.frequency"},
    dict.fromkeys(_WRITERS, _STAGES),
)
