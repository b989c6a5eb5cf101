"""A partition folder on this machine: manifest, mapped arrays, `LocalPartition`."""

from glt_lightning.data.graph import Seeds
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.manifest import Manifest

__all__ = ["LocalPartition", "Manifest", "Seeds"]
