"""Other systems' names over ours, and readers of their partitions.

* ``import glt_lightning.compat.glt as glt``: GraphLearn-for-PyTorch's names, for its scripts.
* ``import glt_lightning.compat.dgl as dgl``: DGL's names of distributed training.
* ``compat.others``: partitions of GLT, DGL and PyG as sources of ours.

docs/coming-from.md shows them in use; the error for any other name says what to use. They use the faces of the rooms alone.

Example:
    >>> import glt_lightning.compat.glt as glt
    >>> glt.utils.id2idx([2, 0])
    tensor([1, 0, 0])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    from glt_lightning.compat.others.convert import (
        KINDS as KINDS,
        convert_partition as convert_partition,
        read_labels as read_labels,
    )


__all__ = []

__getattr__, __dir__ = lazy_names(__name__)
