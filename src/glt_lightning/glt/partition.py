"""GLT's `partition`: partitioners, and readers of what they write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.lazy import lazy_names

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
    from glt_lightning.glt.frequency import (
        FrequencyPartitioner as FrequencyPartitioner,
    )
    from glt_lightning.glt.partitioners import (
        MetisPartitioner as MetisPartitioner,
        PartitionerBase as PartitionerBase,
        RandomPartitioner as RandomPartitioner,
        StreamingPartitioner as StreamingPartitioner,
    )

_STAGES = (
    "{name}: a part is written once, with its features. Give them to a partitioner, or to partition_parts, which writes the "
    "parts that a host needs."
)
_WRITERS = ("build_partition_feature", "save_edge_pb", "save_feature_partition", "save_graph_partition", "save_node_pb")
_HOMES = {
    "FeaturePartitionData": "glt_lightning.glt.folders",
    "GLTPartitionBook": "glt_lightning.glt.folders",
    "GraphPartitionData": "glt_lightning.glt.folders",
    "PartitionBook": "glt_lightning.glt.folders",
    "RangePartitionBook": "glt_lightning.glt.folders",
    "cat_feature_cache": "glt_lightning.glt.folders",
    "load_partition": "glt_lightning.glt.folders",
    "FrequencyPartitioner": "glt_lightning.glt.frequency",
    "MetisPartitioner": "glt_lightning.glt.partitioners",
    "PartitionerBase": "glt_lightning.glt.partitioners",
    "RandomPartitioner": "glt_lightning.glt.partitioners",
    "StreamingPartitioner": "glt_lightning.glt.partitioners",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, dict.fromkeys(_WRITERS, _STAGES))
