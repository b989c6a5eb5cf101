"""What the owners of remote parts are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from glt_lightning.data.manifest import Manifest
from glt_lightning.ops.excluded import ExcludedEdges
from glt_lightning.ops.induce import Among
from glt_lightning.ops.merge import Picks
from glt_lightning.ops.trees import Trees
from glt_lightning.options import DrawOptions
from glt_lightning.sampler.walk_question import Stepped, WalkQuestion

MOST_PAIRS = (
    1 << 16
)  # edges asked for in one question: 1 MiB of ids, and a bound of what rows a peer can have scanned at once


@dataclass(frozen=True)
class Expand:
    """Frontier rows of one hop, all of one owner.

    key: 64-bit key of the batch.  fanouts: [R], -1 all, 0 none.  rows: node type -> gids in frontier order.
    excluded: edges of these rows that are not there.  trees: of these rows, in a disjoint batch.
    require_room: is asked, with the bytes of the answer, before memory is taken for more than one reply; it may raise.
    """

    key: int
    hop: int
    fanouts: tuple[int, ...]
    draw: DrawOptions
    rows: Mapping[int, np.ndarray]
    require_room: Callable[[int], None] = lambda nbytes: None
    excluded: ExcludedEdges | None = None
    trees: Trees | None = None


@dataclass(frozen=True)
class AskedRows:
    """Attributes of some nodes (by gid) or edges (by edge row), all of one owner. names: as stored in the partition."""

    kind: str  # "node" or "edge"
    type: int
    names: tuple[str, ...]
    ids: np.ndarray


HasEdges = Callable[[], np.ndarray]  # waits; bool [n]
Induced = Callable[[], Picks]  # waits; neighbours are positions in `Among.members`
Walked = Callable[[], Stepped]  # waits
Picked = Callable[[], Mapping[int, Picks]]  # waits; edge type -> picks
Gathered = Callable[[], Sequence[Mapping[str, np.ndarray]]]  # waits; per `AskedRows`: name -> [n, ...]


class RemoteRows(Protocol):
    """The owners of a partitioned graph. Requests leave at once; what they return waits for the answer.

    num_owners: with this process, which is number 0.  owner_of_part: int32 [P].
    """

    num_owners: int
    owner_of_part: np.ndarray

    def expand(self, owner: int, request: Expand) -> Picked:
        """Samples neighbours of rows at their owner. Waiting raises `PeerError`, naming it."""

    def has_edges(
        self, owner: int, edge_type: int, dst: np.ndarray, src: np.ndarray, weights: Sequence[str | None] = ()
    ) -> HasEdges:
        """Asks the owner of ``dst`` whether there are edges from ``src[i]`` to ``dst[i]``. Waiting raises `PeerError`, naming
        it."""

    def induce(self, owner: int, among: Among, weights: Sequence[str | None]) -> Induced:
        """Asks the owner of ``among.rows`` for the edges of these rows whose sources are members. weights: those of
        `DrawOptions`; edges of weight 0 are left out. Waiting raises `PeerError`, naming it."""

    def walk(self, owner: int, question: WalkQuestion) -> Walked:
        """Has walks taken on by the owner of their next rows. Waiting raises `PeerError`, naming it."""

    def gather(self, owner: int, request: Sequence[AskedRows]) -> Gathered:
        """Reads attributes at their owner. Waiting raises `PeerError`, naming it."""


class EdgeOwners(Protocol):
    """The owners of remote parts, for a device that finds the further edges of its batches."""

    def ask_edges(self, asked: Sequence[Among], *, weighted: bool = True) -> Sequence[Induced]:
        """Asks for the edges of each entry, as `neighbors.NeighborSource.induce` finds them; the questions leave at once.
        weighted: edges of weight 0 are left out, where neighbours are drawn by weights."""

    def reached_edges(self, edges: Mapping[int, np.ndarray]) -> None:
        """Asks for the attributes of new edges: int64 edge rows by edge type."""


def wire_dtype(manifest: Manifest) -> np.dtype:
    """Type of ids between processes: int32 where all nodes and edges can be counted with it, else int64."""
    return np.dtype(np.int32 if max(manifest.total_nodes, *manifest.num_edges, 0) < 2**31 else np.int64)
