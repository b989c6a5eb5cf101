"""What one batch asks the owners of other parts: the rows, the requests and the bytes of `sampler.routed_source.RoutedSource`.

Nothing is asked here. The sizes follow from the sampled nodes and edges alone, since each owner is asked once per hop for
neighbours and once for attributes (docs/wire-format.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from glt_lightning.data.manifest import ArrayEntry, Manifest, edge_path, node_path
from glt_lightning.ops.khop import Subgraph
from glt_lightning.ops.row_bytes import row_bytes
from glt_lightning.partition.report.contents import part_of
from glt_lightning.sampler.request import SamplerConfig
from glt_lightning.sampler.source import wire_dtype
from glt_lightning.sampler.table import edge_names, node_names

_ALIGN = 64  # of arrays in a message


@dataclass(frozen=True)
class Asked:
    """Of one batch: rows of attributes by kind, requests, and bytes of bodies there and back."""

    node_rows: int
    edge_rows: int
    requests: int
    bytes_out: int
    bytes_in: int


class OwnerRequests:
    """Sizes of the requests of batches that are sampled with ``config``, where each part has a host of its own.

    Shapes: T node types, R edge types, P parts, H hops.
    """

    def __init__(self, manifest: Manifest, config: SamplerConfig) -> None:
        self._manifest, self._config = manifest, config
        self._wire = wire_dtype(manifest).itemsize
        self._targets = manifest.schema.destination_types()
        arrays = manifest.arrays
        self.node_widths = [
            [_width(arrays[node_path(0, t, name)]) for name in ("n_id", *names)]
            for t, names in enumerate(node_names(manifest))
        ]
        self._edge_widths = [
            [_width(arrays[edge_path(0, r, name)]) for name in names.values()]
            for r, names in enumerate(edge_names(manifest, config))
        ]

    def of_batch(self, found: Subgraph, part: int, cached: Sequence[Sequence[np.ndarray]]) -> list[Asked]:
        """What the host of ``part`` asks for one batch, without a cache and with each of several.

        cached: for each cache T arrays bool [n_t], whether a node's attributes lie in it.
        """
        parts = [part_of(self._manifest, t, gids) for t, gids in enumerate(found.gid)]
        nodes = [self._node_counts(found, parts, part, None)]
        nodes += [self._node_counts(found, parts, part, in_cache) for in_cache in cached]
        picks = self._pick_counts(found, parts, part)
        neighbors = self._expand(nodes[0], picks)
        edges = self._gather(picks, self._edge_widths)
        edge_rows = int(picks[[bool(widths) for widths in self._edge_widths]].sum())
        asked = []
        for counts in nodes:
            total = neighbors + edges + self._gather(counts, self.node_widths)
            asked.append(Asked(int(counts.sum()), edge_rows, *total.tolist()))
        return asked

    def _node_counts(
        self, found: Subgraph, parts: list[np.ndarray], own: int, cached: Sequence[np.ndarray] | None
    ) -> np.ndarray:
        """int64 [T, H + 1, P]: nodes by type, the hop that found them and part, but for the own part's and cached ones."""
        num_parts, counts = self._manifest.num_parts, []
        for t, per_hop in enumerate(found.nodes_per_hop):
            place = np.repeat(np.arange(len(per_hop)), per_hop) * num_parts + parts[t]
            if cached is not None:
                place = place[~cached[t]]
            counts.append(np.bincount(place, minlength=len(per_hop) * num_parts).reshape(-1, num_parts))
        counts_of_others = np.stack(counts)
        counts_of_others[:, :, own] = 0
        return counts_of_others

    def _pick_counts(self, found: Subgraph, parts: list[np.ndarray], own: int) -> np.ndarray:
        """int64 [R, H, P]: picked neighbours by edge type, hop and the part of the node that they were picked for."""
        num_parts, hops = self._manifest.num_parts, len(self._config.fanouts)
        counts = np.zeros((len(self._targets), hops, num_parts), dtype=np.int64)
        for r, per_hop in enumerate(found.edges_per_hop):
            owners = parts[self._targets[r]][found.dst[r]]
            for hop, (begin, end) in enumerate(pairwise(np.cumsum([0, *per_hop]).tolist())):
                counts[r, hop] = np.bincount(owners[begin:end], minlength=num_parts)
        counts[:, :, own] = 0
        return counts

    def _expand(self, nodes: np.ndarray, picks: np.ndarray) -> np.ndarray:
        """[requests, bytes out, bytes in] of the requests for neighbours."""
        total = np.zeros(3, dtype=np.int64)
        for hop, fanouts in enumerate(self._config.fanouts):
            followed = [r for r, fanout in enumerate(fanouts) if fanout]
            rows = nodes[sorted({self._targets[r] for r in followed}), hop]
            total[:2] += (rows.any(axis=0).sum(), _aligned(rows * self._wire).sum())
            for r in followed:
                found = picks[r, hop] * self._wire
                counts = _aligned(nodes[self._targets[r], hop] * self._wire)
                total[2] += (counts + len(self._config.columns) * _aligned(found)).sum()
        return total

    def _gather(self, rows: np.ndarray, widths: list[list[int]]) -> np.ndarray:
        """[requests, bytes out, bytes in] of the requests for attributes. rows: [types, hops, P]; those of a type without
        attributes are not asked for."""
        rows, widths = rows[[bool(each) for each in widths]], [each for each in widths if each]
        reply = sum(_aligned(rows[i] * width).sum() for i, each in enumerate(widths) for width in each)
        return np.array([rows.any(axis=0).sum(), _aligned(rows * self._wire).sum(), reply], dtype=np.int64)


def _width(entry: ArrayEntry) -> int:
    return row_bytes(entry.dtype, entry.shape[1:])


def _aligned(size: np.ndarray) -> np.ndarray:
    return -(-size // _ALIGN) * _ALIGN
