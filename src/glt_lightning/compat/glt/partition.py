"""GLT's `partition`: partitioners, and readers of what they write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    pass

_STAGES = (
    "{name}: a part is written once, with its features. Give them to a partitioner, or to partition_parts, which writes the "
    "parts that a host needs."
)
_WRITERS = ("build_partition_feature", "save_edge_pb", "save_feature_partition", "save_graph_partition", "save_node_pb")
_HOMES = {
    "FeaturePartitionData": "glt_lightning.compat.glt.folders",
    "GLTPartitionBook": "glt_lightning.compat.glt.folders",
    "GraphPartitionData": "glt_lightning.compat.glt.folders",
    "PartitionBook": "glt_lightning.compat.glt.folders",
    "RangePartitionBook": "glt_lightning.compat.glt.folders",
    "cat_feature_cache": "glt_lightning.compat.glt.folders",
    "load_partition": "glt_lightning.compat.glt.folders",
    "FrequencyPartitioner": "glt_lightning.compat.glt.partitioners",
    "MetisPartitioner": "glt_lightning.compat.glt.partitioners",
    "PartitionerBase": "glt_lightning.compat.glt.partitioners",
    "RandomPartitioner": "glt_lightning.compat.glt.partitioners",
    "StreamingPartitioner": "glt_lightning.compat.glt.partitioners",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, dict.fromkeys(_WRITERS, _STAGES))
