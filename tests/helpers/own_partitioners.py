"""Classes as users write them, named by their class path in ``partition.algorithm``."""

from __future__ import annotations

from typing import Any

import numpy as np

from glt_lightning.partition import Assigner, GraphToPartition


class Stripes(Assigner):
    """Node i goes to part i // width, round and round."""

    def __init__(self, width: int = 1) -> None:
        super().__init__()
        self.width = width

    def assign(self, graph: GraphToPartition) -> dict[str, np.ndarray]:
        return {t: np.arange(n) // self.width % graph.num_parts for t, n in graph.num_nodes.items()}


class Returns(Assigner):
    """Gives back what it was given, as a list of numbers per node type or as anything else."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def assign(self, graph: GraphToPartition) -> Any:
        if not isinstance(self.value, dict):
            return self.value
        return {t: np.array(parts) for t, parts in self.value.items()}


class Forgetful(Assigner):
    """Has no ``assign``."""


class NoPartitioner:
    pass
