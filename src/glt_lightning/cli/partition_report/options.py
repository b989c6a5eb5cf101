"""The options of the traffic that a report predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from glt_lightning.base import (
    DrawOptions,
    Fanouts,
    OptionError,
    SamplingOptions,
    TimeBoundary,
    WeightAttr,
    one_of,
    parse_fanouts,
)
from glt_lightning.sampling import EXCLUDE


def _default_fanouts() -> Fanouts:
    return [15, 10, 5]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrafficOptions(DrawOptions):
    """The batches that a report assumes, and how their neighbours are drawn (`DrawOptions`).

    Attributes:
        num_neighbors: Fan-outs, first hop first, -1 for all; or a list per edge type.
        batch_size: Seeds per batch and rank; edges where the partition has edges to predict.
        batches: Batches to sample of each part; fewer if an epoch has fewer.
        cache: Sizes of remote caches, each as a share of all nodes of each type.
        seed: Seed of all draws.
        weight_attr, time_attr, time_window, time_boundary: As in the group ``sampling``.
        input_time: Times of the seed nodes, int [S]; None: their own.
        disjoint: Each seed is the root of a tree of its own.
        neg_sampling: Negatives of edges to predict, as in `LinkSpec`, also by edge type. None: as given with the edges, else
            ``binary``.
        exclude_target_edges, reverse_edge_types: As in `LinkSpec`.
        walks: Random walks find the neighbours (``sampling.importance_neighbors``): their traffic is not predicted.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> TrafficOptions(num_neighbors=[10, 5], batch_size=256, cache=[0.1]).batches
        16
    """

    num_neighbors: Fanouts = field(default_factory=_default_fanouts)
    batch_size: int = 1024
    batches: int = 16
    cache: Sequence[float] = (0.01, 0.05, 0.1, 0.2)
    seed: int = 0
    weight_attr: WeightAttr = None
    time_attr: str | None = None
    time_window: int | None = None
    time_boundary: TimeBoundary = "<="
    input_time: Any = None
    disjoint: bool = False
    neg_sampling: Any = None
    exclude_target_edges: str = "reverse"
    reverse_edge_types: dict[str, str] | None = None
    walks: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.num_neighbors
        for key, fanouts in given.items() if isinstance(given, dict) else [("", given)]:
            parse_fanouts(fanouts, f"num_neighbors[{key}]" if key else "num_neighbors")
        for name, least in (("batch_size", 1), ("batches", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{name}: expected an integer >= {least}, got {value!r}.")
        if not all(isinstance(c, (int, float)) and not isinstance(c, bool) and 0 < c <= 1 for c in self.cache):
            raise OptionError(
                f"cache: expected shares of all nodes, above 0 and at most 1, such as [0.01, 0.1]; got {self.cache!r}."
            )
        one_of("exclude_target_edges", self.exclude_target_edges, EXCLUDE)
        _ = self.sampling  # which checks the others

    @property
    def sampling(self) -> SamplingOptions:
        """The sampling options of a loader whose ranks take the seeds of their own parts."""
        return SamplingOptions.of_draw(
            self,
            seed_placement="owner",
            weight_attr=self.weight_attr,
            time_attr=self.time_attr,
            time_window=self.time_window,
            time_boundary=self.time_boundary,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for JSON; of an array its shape."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return f"array {list(value.shape)}" if isinstance(value, np.ndarray) else value
