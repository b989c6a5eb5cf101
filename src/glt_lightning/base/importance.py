"""Which nodes count as the neighbours of a node by random walks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glt_lightning.base.checks import as_options, at_least
from glt_lightning.base.errors import OptionError
from glt_lightning.base.types import MAX_FANOUT

_NAME = "sampling.importance_neighbors"


@dataclass(frozen=True, kw_only=True)
class ImportanceNeighbors:
    """The nodes that random walks from a node visit most often are its neighbours, as in PinSAGE: ``num_neighbors`` of them.

    A batch has an edge from each of them to the node, with ``visits``, how often it was visited, and ``edge_weight``, its share
    of the visits of all these neighbours. Of nodes that were visited equally often the first visited is taken.

    Attributes:
        walks: Walks from each node.
        length: How often a walk goes along ``metapath``: without one, its steps. A step goes against an edge, to its source, as
            neighbours are drawn. A walk ends at a node without incoming edges.
        restart: Probability with which a walk goes back to its node, before it goes along ``metapath`` again.
        stop: Probability with which it ends there instead, as in DGL.
        metapath: In a graph with several edge types, those that a walk goes along, one step each. The nodes at its end are
            counted, and the edges of a batch are of the type ``(end, visited_from, begin)``. Several metapaths have names for
            these edge types: ``{item__near__item: [...]}``. ``None``: the only edge type.
        self_loops: Whether a node may be a neighbour of itself.

    Raises:
        OptionError: For a value that is not allowed, or options that exclude each other.

    Example:
        >>> ImportanceNeighbors(walks=50, length=3, restart=0.5).walks
        50
        >>> ImportanceNeighbors(restart=2)
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: sampling.importance_neighbors.restart: ...
    """

    walks: int = 10
    length: int = 3
    restart: float = 0.0
    stop: float = 0.0
    metapath: list[str] | dict[str, list[str]] | None = None
    self_loops: bool = False

    def __post_init__(self) -> None:
        at_least(f"{_NAME}.walks", self.walks, 1)
        at_least(f"{_NAME}.length", self.length, 1)
        for name in ("restart", "stop"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
                raise OptionError(f"{_NAME}.{name}: expected a probability, 0 to 1; got {value!r:.80}.")
        if self.restart and self.stop:
            raise OptionError(
                f"{_NAME}.stop: excludes restart: a walk ends, or goes back to its node. Remove one of them."
            )
        if not isinstance(self.self_loops, bool):
            raise OptionError(f"{_NAME}.self_loops: expected true or false, got {self.self_loops!r:.80}.")
        given: Any = self.metapath
        for each in given.values() if isinstance(given, Mapping) else [] if given is None else [given]:
            names = isinstance(each, Sequence) and not isinstance(each, str)
            if not names or not each or not all(isinstance(name, str) for name in each):
                raise OptionError(
                    f"{_NAME}.metapath: expected edge types such as [user__rates__item, item__rated_by__user], or a mapping "
                    f"from edge types of the batch to such lists; got {given!r:.200}."
                )
        longest = max((len(each) for each in self.metapaths.values()), default=1)
        if self.walks * self.length * longest > MAX_FANOUT:
            raise OptionError(
                f"{_NAME}: {self.walks} walks of {self.length * longest} steps: expected at most {MAX_FANOUT} steps from one "
                "node. Use fewer or shorter walks."
            )

    @property
    def metapaths(self) -> dict[str, list[str]]:
        """By the edge type of the batch; of a single one that is ''. Empty: the only edge type of the graph."""
        if self.metapath is None:
            return {}
        return dict(self.metapath) if isinstance(self.metapath, Mapping) else {"": list(self.metapath)}

    @classmethod
    def of(cls, given: Any) -> ImportanceNeighbors | None:
        """given: None, an object, or a mapping of its fields."""
        return None if given is None else as_options(cls, _NAME, given)
