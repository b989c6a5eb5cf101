"""Verified copies of partition folders: from another folder, an object store or a serving host."""

from glt_lightning.partition.copies.hashes import hash_partition
from glt_lightning.partition.copies.pull import Pulled, PullOptions, pull_partition
from glt_lightning.partition.copies.source import CopySource, FolderCopySource, StoreCopySource, open_copy_source

__all__ = [
    "CopySource",
    "FolderCopySource",
    "PullOptions",
    "Pulled",
    "StoreCopySource",
    "hash_partition",
    "open_copy_source",
    "pull_partition",
]
