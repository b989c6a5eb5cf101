"""Properties of the built-in assigners that are known before they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from glt_lightning.base import OptionError
from glt_lightning.partition.assign.base import Assigner
from glt_lightning.partition.assign.frequency import FrequencyAssigner
from glt_lightning.partition.assign.metis import MetisAssigner
from glt_lightning.partition.assign.random import RandomAssigner
from glt_lightning.partition.assign.streaming import StreamingAssigner


@dataclass(frozen=True)
class BuiltIn:
    """Properties of one algorithm.

    Attributes:
        reads: The rows of the topology that it reads.
        most_nodes: The largest number of nodes that it supports; None: unlimited.

    Example:
        >>> built_in(assigner_of(PartitionOptions(algorithm="streaming")))
        BuiltIn(reads='neighbors', most_nodes=2147483647)
    """

    reads: Literal["nothing", "sampled", "neighbors"]
    most_nodes: int | None = None


_BY_METHOD = {
    RandomAssigner.assign: BuiltIn("nothing"),
    FrequencyAssigner.assign: BuiltIn("sampled"),
    MetisAssigner.assign: BuiltIn("neighbors"),
    StreamingAssigner.assign: BuiltIn("neighbors", 2**31 - 1),  # a group is named by a node, as int32
}


def built_in(assigner: Assigner) -> BuiltIn | None:
    """Properties of a built-in assigner; None for a file or a user's class, of which nothing is known.

    Args:
        assigner: The assigner, as `assigner_of` makes it.

    Example:
        >>> built_in(assigner_of(PartitionOptions(algorithm="metis"))).reads
        'neighbors'
    """
    return _BY_METHOD.get(type(assigner).assign)


def require_countable(assigner: Assigner, num_nodes: int, name: str) -> None:
    """Checks that an algorithm supports the number of nodes of a graph.

    Args:
        assigner: The assigner.
        num_nodes: Number of nodes of all types.
        name: Name of the algorithm, for the error message.

    Raises:
        OptionError: If the graph has more nodes than the algorithm supports.

    Example:
        >>> require_countable(assigner_of(PartitionOptions()), 10**12, "random")
        >>> require_countable(assigner_of(PartitionOptions(algorithm="streaming")), 2**31, "streaming")
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: partition.algorithm: ...
    """
    known = built_in(assigner)
    if known is not None and known.most_nodes is not None and num_nodes > known.most_nodes:
        raise OptionError(
            f"partition.algorithm: {name} supports at most {known.most_nodes:,} nodes, but the graph has {num_nodes:,}. "
            "Use random, frequency or metis, or a file of part numbers."
        )
