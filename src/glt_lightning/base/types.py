"""Node types, edge types and the schema of a graph.

There is one kind of graph: a typed one. A homogeneous graph has the single node type ``"node"`` and the single edge
type ``("node", "to", "node")``; only the doors (`partition.sources`, `loader.collate`) know the difference.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

NodeType = str
EdgeType = tuple[str, str, str]

# The largest fan-out but -1, which takes all; GLT_MAX_FANOUT of glt/api.h. What a larger one would ask for is more than a
# batch can hold, with replacement even of a small graph.
MAX_FANOUT = 65536

NODE: NodeType = "node"
EDGE: EdgeType = (NODE, "to", NODE)


@dataclass(frozen=True)
class GraphSchema:
    """Which node and edge types a graph has, in lexicographic order.

    A type's position in its tuple is its index, used by manifests, kernels and arrays alike.
    ``homogeneous`` tells the way out (`loader.collate`) to give back `Data` instead of `HeteroData`.
    """

    node_types: tuple[NodeType, ...]
    edge_types: tuple[EdgeType, ...]
    homogeneous: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "node_types", tuple(sorted(self.node_types)))
        object.__setattr__(self, "edge_types", tuple(sorted(tuple(e) for e in self.edge_types)))

    @classmethod
    def single(cls) -> GraphSchema:
        """The schema of a homogeneous graph."""
        return cls((NODE,), (EDGE,), homogeneous=True)

    def node_index(self, node_type: NodeType) -> int:
        return self.node_types.index(node_type)

    def edge_index(self, edge_type: EdgeType) -> int:
        return self.edge_types.index(edge_type)

    def source_types(self) -> list[int]:
        """Index of the source node type of each edge type."""
        return [self.node_index(src) for src, _, _ in self.edge_types]

    def destination_types(self) -> list[int]:
        """Index of the destination node type of each edge type."""
        return [self.node_index(dst) for _, _, dst in self.edge_types]

    def edge_type_keys(self) -> list[int]:
        """64-bit key of each edge type, made of its names: its random draws are keyed by it, whatever other types exist."""
        return [_key("\x1f".join(each)) for each in self.edge_types]

    def node_type_keys(self) -> list[int]:
        """64-bit key of each node type, made of its name: the numbers of its nodes that LABOR draws are keyed by it."""
        return [_key(each) for each in self.node_types]


def _key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def edge_type_str(edge_type: EdgeType) -> str:
    """``("a", "rel", "b")`` -> ``"a__rel__b"``, as PyG spells it."""
    return "__".join(edge_type)
