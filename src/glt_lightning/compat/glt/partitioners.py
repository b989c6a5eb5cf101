"""Partitioning from a script, with the classes and arguments of GraphLearn-for-PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import NODE, DataError, NodeType, OptionError, PartitionError, PartitionOptions, parse_bytes
from glt_lightning.compat.glt.feature import usable_device
from glt_lightning.compat.glt.graph import EDGE_ASSIGN
from glt_lightning.compat.glt.tensor_graph import FLOATS, TensorGraph, fingerprint
from glt_lightning.graph import MANIFEST, Manifest
from glt_lightning.partition import Assigner, GivenAccesses, GraphToPartition, host_array, partition_graph

_OPTIONS = PartitionOptions()
_STRATEGIES = {"by_src": "by_src", "by_dst": "by_dst", "by_des": "by_dst"}  # GLT's tutorial writes by_des


class PartitionerBase(Assigner):
    """Assigns nodes to parts: subclass it and say how in ``assign``.

    Name the subclass in ``partition.algorithm``, which makes it without the arguments below; or, in a script, make it
    with them and call `partition`. A heterogeneous graph is given as dictionaries: by node type, and by edge type
    ``(source, relation, destination)``. Tensors and arrays are taken alike.

    Args:
        output_dir: Folder of the partition.
        num_parts: Number of parts, >= 1.
        num_nodes: Number of nodes.
        edge_index: Integers [2, E], row 0 the sources.
        node_feat: [N, D], stored as ``x``.
        node_feat_dtype: dtype to store it in; None: as it is; without it floating-point numbers as float32, others as they are.
        edge_feat: [E, D], stored as ``edge_attr``.
        edge_feat_dtype: dtype to store it in; None: as it is; without it floating-point numbers as float32, others as they are.
        edge_weights: [E], stored as ``edge_weight``, float32, and added to ``options.weights``: neighbours can be drawn by them.
        edge_assign_strategy: ``by_dst``: edges lie with their destination and batches hold in-neighbours, as in PyG.
            ``by_src``: they lie with their source and batches hold out-neighbours, with edges turned round.
        chunk_size: Ids per part that `FrequencyPartitioner` deals out at a time. The working memory of all is bounded by
            ``options.memory_bytes`` instead.
        device: Where hotness is worked out, in place of ``options.device``; a CUDA device that cannot be used is replaced
            by the CPU, which is logged. All else runs on the CPU.
        node_label: [N] or [N, C], stored as ``y``.
        splits: ``train``, ``val``, ``test`` -> node ids, or (node type, ids).
        options: All else: seed, balance, working memory.

    Raises:
        OptionError, DataError: For arguments that do not fit the graph. PartitionError: By `partition`, if ``output_dir`` holds
            anything else.

    Example:
        >>> class ByParity(PartitionerBase):
        ...     def assign(self, graph):
        ...         return {t: np.arange(n) % graph.num_parts for t, n in graph.num_nodes.items()}
        >>> ends = np.stack([np.arange(10), (np.arange(10) + 1) % 10])
        >>> ByParity("by_parity", 2, 10, ends).partition(progress=False).bounds
        ((0, 5, 10),)
    """

    _algorithm: str | None = None  # name of ours; None: a class of the user's

    def __init__(
        self,
        output_dir: str | Path | None = None,
        num_parts: int | None = None,
        num_nodes: Any = None,
        edge_index: Any = None,
        node_feat: Any = None,
        node_feat_dtype: Any = FLOATS,
        edge_feat: Any = None,
        edge_feat_dtype: Any = FLOATS,
        edge_weights: Any = None,
        edge_assign_strategy: str = "by_src",
        chunk_size: int = 10000,
        device: Any = None,
        *,
        node_label: Any = None,
        splits: Mapping[str, Any] | None = None,
        options: PartitionOptions = _OPTIONS,
    ) -> None:
        self.output_dir = None if output_dir is None else Path(output_dir)
        if self.output_dir is None:
            return
        needed = {"num_parts": num_parts, "num_nodes": num_nodes, "edge_index": edge_index}
        if missing := [name for name, value in needed.items() if value is None]:
            raise OptionError(f"{type(self).__name__}: {', '.join(missing)} must be given with output_dir.")
        if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1:
            raise OptionError(f"chunk_size: expected an integer >= 1, got {chunk_size!r}.")
        self.chunk_size, self.device = chunk_size, device
        self.edge_assign_strategy = _strategy(edge_assign_strategy)
        kind = type(self)
        algorithm = self._algorithm or f"{kind.__module__}.{kind.__qualname__}"
        assert num_parts is not None
        weights = [] if edge_weights is None else ["edge_weight"]  # GLT's with_weight draws by them
        weights += [name for name in options.weights if name not in weights]
        self.options = replace(options, num_parts=num_parts, algorithm=algorithm, weights=weights)
        self.graph = TensorGraph(
            num_nodes=num_nodes,
            edge_index=edge_index,
            node_feat=node_feat,
            node_feat_dtype=node_feat_dtype,
            edge_feat=edge_feat,
            edge_feat_dtype=edge_feat_dtype,
            edge_weights=edge_weights,
            node_label=node_label,
            by_src=self.edge_assign_strategy == "by_src",
        )
        self._source = self.graph.source()
        self._splits = None if splits is None else {_split_name(k): _split(k, v) for k, v in splits.items()}

    @property
    def _assigner(self) -> Assigner | None:
        """What assigns the nodes; None: the algorithm that the options name."""
        return self

    def partition(self, *, progress: bool | None = None) -> Manifest:
        """Writes ``output_dir`` and returns its manifest. A folder that holds this very partition is used again.

        Raises `PartitionError` when the folder holds anything else. progress: as `partition_graph`.
        """
        name = type(self).__name__
        if getattr(self, "output_dir", None) is None:
            raise OptionError(
                f"{name}: constructed without output_dir, num_parts, num_nodes and edge_index; such an instance "
                "can only be given as partition.algorithm. A class with an __init__ of its own must pass these on "
                "to super().__init__."
            )
        assert self.output_dir is not None
        if self._algorithm is None and (self.output_dir / MANIFEST).exists():
            raise PartitionError(
                f"{self.output_dir}: already contains a partition, and it is unknown whether {name} would make the "
                "same one. Delete the folder or choose another output_dir."
            )
        source = replace(self._source, fingerprint=fingerprint(self._source))
        options = self.options if self.device is None else replace(self.options, device=usable_device(self.device))
        made_by = {} if self.edge_assign_strategy == "by_dst" else {EDGE_ASSIGN: self.edge_assign_strategy}
        how: dict[str, Any] = {"splits": self._splits, "progress": progress, "assigner": self._assigner}
        return partition_graph(source, self.output_dir, options, record=made_by, **how)


class _Named(PartitionerBase):
    """Assigns nodes by the algorithm ``_algorithm``."""

    @property
    def _assigner(self) -> Assigner | None:
        return None

    def assign(self, graph: GraphToPartition) -> Mapping[NodeType, np.ndarray]:
        """Refused: it is asked only where the class is named in ``partition.algorithm``."""
        raise OptionError(f"partition.algorithm: {type(self).__name__}: name the algorithm instead: {self._algorithm}.")


class RandomPartitioner(_Named):
    """Gives every part the same number of nodes of each type, at random by ``options.seed``. Arguments as for `PartitionerBase`.

    Example:
        >>> ends = np.stack([np.arange(10), (np.arange(10) + 1) % 10])  # a ring
        >>> partitioner = RandomPartitioner("at_random", 2, 10, ends, node_feat=np.ones((10, 3)))
        >>> partitioner.partition(progress=False).num_features("node")
        3
    """

    _algorithm = "random"


class MetisPartitioner(_Named):
    """Assigns nodes so that few edges lie between parts, by METIS in memory. Arguments as for `PartitionerBase`.

    Raises:
        NativeError: If METIS (pymetis) is not installed.

    Example:
        >>> ends = np.stack([np.arange(10), (np.arange(10) + 1) % 10])  # a ring
        >>> partitioner = MetisPartitioner("by_metis", 2, 10, ends)
        >>> partitioner.partition(progress=False).num_parts
        2
    """

    _algorithm = "metis"


class StreamingPartitioner(_Named):
    """Assigns nodes so that few edges lie between parts, in bounded memory. Arguments as for `PartitionerBase`.

    Example:
        >>> ends = np.stack([np.arange(10), (np.arange(10) + 1) % 10])  # a ring
        >>> partitioner = StreamingPartitioner("streamed", 2, 10, ends)
        >>> partitioner.partition(progress=False).num_edges
        (10,)
    """

    _algorithm = "streaming"


def _strategy(given: str) -> str:
    if str(given).lower() not in _STRATEGIES:
        raise OptionError(f"edge_assign_strategy: expected 'by_src' or 'by_dst', got {given!r}.")
    return _STRATEGIES[str(given).lower()]


def _split_name(name: str) -> str:
    return "val" if name == "valid" else name  # as OGB calls it


def _split(name: str, given: Any) -> Any:
    if isinstance(given, Sequence) and len(given) == 2 and isinstance(given[0], str):
        return given[0], host_array(f"splits: {name}", given[1])
    return host_array(f"splits: {name}", given)


# `FrequencyPartitioner` of GraphLearn-for-PyTorch: parts and hotness from probabilities that the script worked out.


_log = logging.getLogger(__name__)


class FrequencyPartitioner(_Named):
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
    def _assigner(self) -> Assigner | None:
        return None if self._probs is None else GivenAccesses(self._probs, self.chunk_size)

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
