"""The task of a sampler that makes batches of edges: one edge type, and its negatives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from glt_lightning.base import DataError, GraphSchema, NegativeSampling
from glt_lightning.sampling.negatives import TRIALS

_MOST_AMOUNT = 1 << 20  # negatives for each edge that another process may ask for
_MOST_NAME = 200  # characters of a loader's name
_RARE = ("joint", "turned", "related")  # sent, and part of a checkpoint, only where they are set


@dataclass(frozen=True, kw_only=True)
class LinkTask:
    """The edges of one type in batches of edges, and their negatives. Plain values, so that it can be sent to another process.

    loader: name of the loader, for errors.  edge_type: index of the edge type.
    mode, amount, strict, sharing, self_loops, unresolved: as in `NegativeSampling`; mode None: no negatives.
    timed: the nodes of negatives exist at the time of their edge.
    exclude: edges over which no messages are passed: none (``none``), the edges of the batch (``self``), or these and the
    edges of the other direction (``reverse``).  reverse: index of the edge type of the other direction, which may be the
    same; None: there is none.
    joint: in a disjoint batch, both ends of an edge, or of a negative, share a tree of their own; not with triplets.
    attrs: batches have the attributes of their edges.
    turned: the edges are given in the other direction than they are stored: their sources are the edge type's destinations.
    related: edges are of several kinds, and the trainer says which negatives are edges: none is looked for in the graph.

    Raises `DataError` for values that no loader has.
    """

    EXCLUDE: ClassVar[tuple[str, ...]] = ("none", "self", "reverse")

    loader: str
    edge_type: int
    mode: str | None = None
    amount: int | float = 1
    strict: bool = True
    sharing: str = "none"
    self_loops: bool = False
    timed: bool = False
    unresolved: str = "error"
    exclude: str = "none"
    reverse: int | None = None
    joint: bool = False
    attrs: bool = False
    turned: bool = False
    related: bool = False

    def __post_init__(self) -> None:
        kinds = {
            "mode": (None, *NegativeSampling.MODES),
            "sharing": NegativeSampling.SHARINGS,
            "exclude": self.EXCLUDE,
            "unresolved": NegativeSampling.UNRESOLVED,
        }
        bad = [name for name, known in kinds.items() if getattr(self, name) not in known]
        flags = ("strict", "self_loops", "timed", "joint", "attrs", "turned", "related")
        bad += [name for name in flags if not isinstance(getattr(self, name), bool)]
        if type(self.amount) not in (int, float) or not 0 < self.amount <= _MOST_AMOUNT:
            bad.append("amount")
        for name in ("edge_type", "reverse"):
            value = getattr(self, name)
            if (type(value) is not int or value < 0) and (value is not None or name == "edge_type"):
                bad.append(name)
        if not isinstance(self.loader, str) or len(self.loader) > _MOST_NAME:
            bad.append("loader")
        if self.joint and self.mode == "triplet":
            bad.append("joint")
        if bad:
            raise DataError(f"link: {bad[0]}: {getattr(self, bad[0])!r:.80} is not allowed.")

    @staticmethod
    def target_name(attr: str) -> str:
        """Returns the name that an attribute of the edges to predict has in a batch: ``edge_label_attr`` for ``edge_attr``, and
        ``edge_label_id`` for their ids, ``e_id``."""
        return "edge_label_id" if attr == "e_id" else f"edge_label_{attr.removeprefix('edge_')}"

    @classmethod
    def of(cls, options: NegativeSampling | None, **known: Any) -> LinkTask:
        if options is None:
            return cls(**known)
        return cls(
            mode=options.mode,
            amount=options.amount,
            strict=options.strict,
            sharing=options.sharing,
            self_loops=options.self_loops,
            unresolved=options.unresolved,
            **known,
        )

    def ends(self, schema: GraphSchema) -> tuple[int, int]:
        """Returns the node types of sources and destinations."""
        src, dst = schema.source_types()[self.edge_type], schema.destination_types()[self.edge_type]
        return (dst, src) if self.turned else (src, dst)

    def count(self, positives: int) -> int:
        """Returns the number of negatives that a batch with so many edges draws."""
        if self.mode is None or self.sharing == "in_batch" or not positives:
            return 0
        return int(self.amount) if self.sharing == "shared" else math.ceil(round(positives * self.amount, 9))

    @property
    def trials(self) -> int:
        """The largest number of pairs that are tried for a negative."""
        return TRIALS if (self.strict or self.timed) and self.sharing == "none" else 1

    def to_wire(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value or name not in _RARE}

    @classmethod
    def from_wire(cls, given: Any, num_edge_types: int | None = None) -> LinkTask:
        """Decodes a task: the inverse of `to_wire`. num_edge_types: number of the graph's edge types; None: not checked. Raises
        `DataError` for anything else."""
        known = {field.name for field in fields(cls)}
        if not isinstance(given, Mapping) or not {"loader", "edge_type"} <= set(given) <= known:
            raise DataError(f"link: expected an object with some of {', '.join(sorted(known))}; got {given!r:.200}.")
        task = cls(**given)
        for name in ("edge_type", "reverse"):
            if num_edge_types is not None and (getattr(task, name) or 0) >= num_edge_types:
                raise DataError(
                    f"link: {name}: expected 0 to {num_edge_types - 1}, an edge type, got {getattr(task, name)}."
                )
        return task

    @classmethod
    def further(cls, given: Any, num_edge_types: int | None = None) -> tuple[LinkTask, ...]:
        """Decodes `SamplerConfig.more_links`. Raises `DataError`."""
        if not isinstance(given, (list, tuple)):
            raise DataError(f"more_links: expected a list of objects as for link, got {given!r:.200}.")
        return tuple(cls.from_wire(each, num_edge_types) for each in given)
