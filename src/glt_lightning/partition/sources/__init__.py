"""Sources of graphs: files, folders, tables, OGB, PyG and scipy. `open_source` opens any of them."""

from glt_lightning.partition.sources.base import ArraySource, EdgeList, GraphSource, Rows, Splits
from glt_lightning.partition.sources.ogb.source import read_edge_splits
from glt_lightning.partition.sources.open import open_source
from glt_lightning.partition.sources.tables.columns import user_ids
from glt_lightning.partition.sources.tables.encoding import encode_rows

__all__ = [
    "ArraySource",
    "EdgeList",
    "GraphSource",
    "Rows",
    "Splits",
    "encode_rows",
    "open_source",
    "read_edge_splits",
    "user_ids",
]
