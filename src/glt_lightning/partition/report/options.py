"""The options of the traffic that a report predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from glt_lightning.errors import OptionError
from glt_lightning.options import DrawOptions, Fanouts, WeightAttr, parse_fanouts


def _default_fanouts() -> Fanouts:
    return [15, 10, 5]


@dataclass(frozen=True, kw_only=True)
class TrafficOptions(DrawOptions):
    """The batches that a report assumes, and how their neighbours are drawn (`DrawOptions`).

    Attributes:
        num_neighbors: Fan-outs, first hop first, -1 for all; or a list per edge type.
        batch_size: Seeds per batch and rank.
        batches: Batches to sample of each part; fewer if an epoch has fewer.
        cache: Sizes of remote caches, each as a share of all nodes of each type.
        seed: Seed of all draws.
        weight_attr: The edge attribute that neighbours are drawn by, as ``sampling.weight_attr``.

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
