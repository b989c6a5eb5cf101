"""Algorithms that assign each node to a part."""

from __future__ import annotations

from collections.abc import Callable

from glt_lightning.base import PartitionOptions
from glt_lightning.partition.assign.assigners import FrequencyAssigner, MetisAssigner, RandomAssigner, StreamingAssigner
from glt_lightning.partition.assign.base import Assigner
from glt_lightning.partition.assign.own import FileAssigner, own_class

_BY_NAME: dict[str, Callable[[], Assigner]] = {
    "random": RandomAssigner,
    "frequency": FrequencyAssigner,
    "metis": MetisAssigner,
    "streaming": StreamingAssigner,
}


def assigner_of(options: PartitionOptions) -> Assigner:
    """Makes the assigner that ``options.algorithm`` names.

    Args:
        options: Options of the partition.

    Raises:
        OptionError: If its file or class cannot be found.

    Example:
        >>> type(assigner_of(PartitionOptions(algorithm="metis"))).__name__
        'MetisAssigner'
    """
    given = options.algorithm
    if isinstance(given, dict):
        return own_class(given["class_path"], given.get("init_args"))
    if given in _BY_NAME:
        return _BY_NAME[given]()
    return FileAssigner(given) if given.endswith((".npy", ".npz")) else own_class(given, None)
