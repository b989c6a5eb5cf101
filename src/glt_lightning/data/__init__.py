"""A partition folder on this machine: manifest, mapped arrays, `LocalPartition`."""

from typing import TYPE_CHECKING

from glt_lightning.data.graph import Seeds
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.manifest import Manifest
from glt_lightning.lazy import lazy_names

if TYPE_CHECKING:
    from glt_lightning.glt.graph import Graph, Topology

__all__ = ["Graph", "LocalPartition", "Manifest", "Seeds", "Topology"]

__getattr__ = lazy_names(__name__, dict.fromkeys(("Graph", "Topology"), "glt_lightning.glt.graph"))
