"""`FrequencyPartitioner` of GraphLearn-for-PyTorch: parts and hotness from probabilities that the script worked out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glt_lightning.base import NODE, DataError, NodeType, OptionError, parse_bytes
from glt_lightning.compat.glt.partitioners import PartitionerBase
from glt_lightning.partition import (
    FLOATS,
    Assignment,
    FrequencyAssigner,
    GraphToPartition,
    GraphTopology,
    Hotness,
    array_fingerprint,
    frequency_parts,
    host_array,
)

_log = logging.getLogger(__name__)


class FrequencyPartitioner(PartitionerBase, FrequencyAssigner):
    """Each node goes to the part that reads it most, in blocks of ids that give every part equally many.

    Args:
        probs: How often each part reads each node: P tensors, floats [N] (`NeighborSampler.sample_prob`). For a
            heterogeneous graph a list of P dictionaries by node type, or a dictionary of lists. None: worked out from
            ``splits["train"]``.
        cache_memory_budget, cache_ratio: Accepted as in GraphLearn-for-PyTorch; a log line says that they have no effect: the
            folder lists all rows of other parts by hotness, so that any cache can be filled from it later.
        further: ``node_label``, ``splits`` and ``options``, as the other arguments those of `PartitionerBase`.

    Raises:
        DataError: For ``probs`` that do not fit the graph or are not finite numbers >= 0.

    Example:
        >>> ends = np.stack([np.arange(10), (np.arange(10) + 1) % 10])  # a ring
        >>> probs = [torch.arange(10) / 10, 1 - torch.arange(10) / 10]  # part 0 reads high ids
        >>> partitioner = FrequencyPartitioner("by_frequency", 2, 10, ends, probs=probs)
        >>> _ = partitioner.partition(progress=False)
        >>> np.sort(LocalPartition.open("by_frequency").user_ids_by_part(0)[0])
        array([5, 6, 7, 8, 9], dtype=int32)
    """

    _algorithm = "frequency"

    def __init__(
        self,
        output_dir: Any = None,
        num_parts: int | None = None,
        num_nodes: Any = None,
        edge_index: Any = None,
        probs: Any = None,
        node_feat: Any = None,
        node_feat_dtype: Any = FLOATS,
        edge_feat: Any = None,
        edge_feat_dtype: Any = FLOATS,
        edge_weights: Any = None,
        edge_assign_strategy: str = "by_src",
        cache_memory_budget: Any = None,
        cache_ratio: Any = None,
        chunk_size: int = 10000,
        device: Any = None,
        **further: Any,
    ) -> None:
        rows = (node_feat, node_feat_dtype, edge_feat, edge_feat_dtype, edge_weights)
        given = (output_dir, num_parts, num_nodes, edge_index, *rows, edge_assign_strategy, chunk_size, device)
        super().__init__(*given, **further)
        if output_dir is None:
            self._probs = None
            return
        _check_cache(cache_memory_budget, cache_ratio)
        self._probs = None if probs is None else self._by_type(probs)

    @property
    def made_by(self) -> dict[str, Any]:
        if self._probs is None:
            return super().made_by
        arrays = ((t, p) for t, parts in sorted(self._probs.items()) for p in parts)
        return super().made_by | {"probs": array_fingerprint(arrays), "chunk_size": self.chunk_size}

    def assign(self, graph: GraphToPartition) -> Assignment:
        if self._probs is None:
            return super().assign(graph)
        return {t: frequency_parts(np.stack(parts, axis=1), self.chunk_size) for t, parts in self._probs.items()}

    def hotness(self, topology: GraphTopology) -> Hotness | None:
        if self._probs is None:
            return None
        parts = range(self.options.num_parts)
        return Hotness("given", {}, [np.concatenate([self._probs[t][p] for t in topology.num_nodes]) for p in parts])

    def _by_type(self, probs: Any) -> dict[NodeType, list[np.ndarray]]:
        """float32 [N] for each node type and part."""
        num_nodes, parts = self._source.num_nodes, self.options.num_parts
        if self.graph.hetero and isinstance(probs, Sequence) and all(isinstance(p, Mapping) for p in probs):
            probs = {t: [part[t] for part in probs if t in part] for t in num_nodes}
        checked = {}
        for t, given in self.graph.by_type("probs", probs, NODE).items():
            name = f"probs[{t!r}]" if self.graph.hetero else "probs"
            if t not in num_nodes:
                raise DataError(f"{name}: no such node type; known: {', '.join(num_nodes)}.")
            if not isinstance(given, Sequence) or len(given) != parts:
                raise DataError(f"{name}: expected {parts} tensors, one for each part, got {_many(given)}.")
            checked[t] = [_prob(f"{name}[{p}]", prob, num_nodes[t]) for p, prob in enumerate(given)]
        if missing := sorted(set(num_nodes) - set(checked)):
            raise DataError(f"probs: no probabilities for node types {', '.join(missing)}.")
        return checked


def _prob(name: str, given: Any, num_nodes: int) -> np.ndarray:
    prob = host_array(name, given)
    if prob.shape != (num_nodes,) or prob.dtype.kind not in "fiu":
        raise DataError(f"{name}: expected floats [{num_nodes}], got {prob.dtype} {list(prob.shape)}.")
    if not (np.isfinite(prob).all() and prob.min(initial=0) >= 0):
        raise DataError(f"{name}: expected finite numbers >= 0.")
    return prob.astype(np.float32, copy=False)


def _many(given: Any) -> str:
    return str(len(given)) if isinstance(given, Sequence) else type(given).__name__


def _check_cache(memory_budget: Any, ratio: Any) -> None:
    for name, given in (("cache_memory_budget", memory_budget), ("cache_ratio", ratio)):
        values = list(given.values()) if isinstance(given, Mapping) else [given]
        for value in (v for v in values if v):
            if name == "cache_memory_budget":
                parse_bytes(name, value)
            elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
                raise OptionError(f"cache_ratio: expected a share of the nodes, 0 to 1, got {value!r}.")
            _log.warning(
                "%s=%r has no effect; each part lists all rows of other parts by hotness, and how many of them are "
                "cached is chosen when training.",
                name,
                value,
            )
