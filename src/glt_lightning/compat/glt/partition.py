"""GLT's `partition`: partitioners, and readers of what they write."""

from __future__ import annotations

from glt_lightning.base import lazy_names

_STAGES = (
    "{name}: a part is written once, with its features. Give them to a partitioner, or to partition_graph, which writes all "
    "parts."
)
_WRITERS = (
    *("build_partition_feature", "save_edge_pb", "save_feature_partition", "save_feature_partition_cache", "save_meta"),
    *("save_feature_partition_chunk", "save_graph_cache", "save_graph_partition", "save_node_pb"),
)
_PARTS = (
    "{name}: LocalPartition.open(folder) maps the arrays of parts; glt_lightning.DistGraph(folder) reads rows by id."
)
_READERS = (
    *("FeaturePartitionData", "GraphPartitionData", "base", "cat_feature_cache", "load_feature_partition_data"),
    *("load_graph_partition_data", "load_partition"),
)
_BOOKS = "{name}: the part of each id is a tensor [N], or a RangePartitionBook."
_REFUSED = (
    dict.fromkeys(_WRITERS, _STAGES)
    | dict.fromkeys(_READERS, _PARTS)
    | dict.fromkeys(("GLTPartitionBook", "PartitionBook"), _BOOKS)
)
_HOMES = {
    "RangePartitionBook": "glt_lightning.compat.glt.folders",
    "FrequencyPartitioner": "glt_lightning.compat.glt.partitioners",
    "MetisPartitioner": "glt_lightning.compat.glt.partitioners",
    "PartitionerBase": "glt_lightning.compat.glt.partitioners",
    "RandomPartitioner": "glt_lightning.compat.glt.partitioners",
    "StreamingPartitioner": "glt_lightning.compat.glt.partitioners",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, _REFUSED)
