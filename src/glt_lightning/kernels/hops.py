"""The loop that samples a k-hop batch hop by hop, for any source of neighbours and in host or device memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from glt_lightning.kernels.routing import Drawn
from glt_lightning.kernels.trees import Trees


class Growing(Protocol):
    """A batch that grows hop by hop: `routing.BatchBuilder` in the host's memory, `cuda.khop_steps.DeviceHops` on a device.

    frontier: per node type the nodes that the last hop found first (the seeds, before the first hop).  trees: the trees of the
    frontier, in a disjoint batch.
    """

    @property
    def frontier(self) -> Sequence[Any]: ...

    @property
    def trees(self) -> Trees | None: ...

    def stitch(self, drawn: Mapping[int, Drawn]) -> Mapping[int, np.ndarray]:
        """Adds a hop's edges. Returns, by edge type, the edge rows (int64) of which owners may be asked for attributes."""

    def end_hop(self) -> None:
        """Makes the nodes that the hop found first the next frontier."""


class Expands(Protocol):
    """Draws neighbours, and is notified of the nodes and edges that a batch has reached."""

    def expand(
        self,
        key: int,
        hop: int,
        fanouts: Sequence[int],
        frontier: Sequence[Any],
        *,
        new: bool = True,
        excluded: Any = None,
        trees: Trees | None = None,
    ) -> Mapping[int, Drawn]:
        """Draws neighbours of a frontier, by edge type; owners are asked while the local rows are drawn.

        fanouts: [R], -1 all, 0 none.  new: the nodes are new in the batch, so their attributes are requested, too.
        excluded: edges to leave out, as given to `run_hops`.  trees: the trees of the frontier, in a disjoint batch.
        """

    def reached_edges(self, edges: Mapping[int, np.ndarray]) -> None:
        """Requests the attributes of new edges from their owners. edges: int64 edge rows by edge type, from `Growing.stitch`."""

    def reached_nodes(self, frontier: Sequence[Any]) -> None:
        """Requests the attributes of new nodes that are not expanded, such as those of the last hop, from their owners."""


def run_hops(
    source: Expands,
    batch: Growing,
    key: int,
    fanouts: Sequence[Sequence[int]],
    excluded: tuple[Any, Any] = (None, None),
) -> None:
    """Grows ``batch``, which has its seeds, by one hop per entry of ``fanouts``, [H][R]. excluded: edges to leave out in the
    first hop, and in later ones."""
    for hop, each in enumerate(fanouts):
        drawn = source.expand(key, hop, each, batch.frontier, excluded=excluded[hop > 0], trees=batch.trees)
        source.reached_edges(batch.stitch(drawn))
        batch.end_hop()
    source.reached_nodes(batch.frontier)
