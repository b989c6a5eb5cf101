"""The task of a sampler whose batches have more edges than the sampled ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from glt_lightning.base import DataError

BIDIRECTIONAL, INDUCED = "bidirectional", "induced"
_MOST = 2**62


@dataclass(frozen=True, kw_only=True)
class SubgraphTask:
    """The edges that batches have beside or in place of the sampled edges. Plain values, so that it can be sent to another
    process.

    kind: ``bidirectional``, also the edges of the other direction; ``induced``, all edges among the nodes of the batch.
    limit: most entries of a row that is read for them; None: any number.  reverse: for each edge type the index of the edge
    type of the other direction, -1 if there is none; for ``bidirectional``.

    Raises `DataError` for values that no loader has.
    """

    kind: str
    limit: int | None = None
    reverse: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        limits = self.limit is None or (type(self.limit) is int and 0 < self.limit <= _MOST)
        reverse = all(type(r) is int and r >= -1 for r in self.reverse)
        if self.kind not in (BIDIRECTIONAL, INDUCED) or not limits or not reverse:
            raise DataError(f"subgraph: {asdict(self)!r:.200} is not allowed.")

    @property
    def is_induced(self) -> bool:
        return self.kind == INDUCED

    def to_wire(self) -> dict[str, Any]:
        return asdict(self) | {"reverse": list(self.reverse)}

    @classmethod
    def from_wire(cls, given: Any, num_edge_types: int | None = None) -> SubgraphTask:
        """Decodes a task: the inverse of `to_wire`. num_edge_types: number of the graph's edge types; None: not checked. Raises
        `DataError` for anything else."""
        known = {field.name for field in fields(cls)}
        if not isinstance(given, Mapping) or set(given) != known or not isinstance(given["reverse"], list):
            raise DataError(f"subgraph: expected an object with {', '.join(sorted(known))}; got {given!r:.200}.")
        task = cls(**dict(given) | {"reverse": tuple(given["reverse"])})
        expected = num_edge_types if task.kind == BIDIRECTIONAL else 0
        outside = num_edge_types is not None and any(r >= num_edge_types for r in task.reverse)
        if outside or (num_edge_types is not None and len(task.reverse) != expected):
            raise DataError(
                f"subgraph: reverse: expected an edge type, or -1, for each; got {list(task.reverse)!r:.100}."
            )
        return task
