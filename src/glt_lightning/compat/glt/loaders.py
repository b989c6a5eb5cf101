"""GraphLearn-for-PyTorch's loaders of one machine: a `Dataset` in, batches with GLT's fields and PyG's out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from glt_lightning import loader
from glt_lightning.base import EdgeType, OptionError
from glt_lightning.compat.glt.dataset import Dataset
from glt_lightning.compat.glt.folders import StoredEdges
from glt_lightning.compat.glt.given import read_seeds
from glt_lightning.compat.glt.loading import WEIGHTS, as_pyg_v1 as pyg_v1_of, output_device
from glt_lightning.compat.glt.one_batch import link_spec
from glt_lightning.compat.glt.sample_prob import NeighborSampler
from glt_lightning.loader import DistNeighborLoader, Session


class _OverDataset:
    """What loaders over a `Dataset` share: PyG's loaders over its graph, whose batches get GLT's fields."""

    _as_pyg_v1 = False

    def _begin(
        self,
        data: Dataset,
        sampler: Any,
        strategy: str,
        num_neighbors: Any,
        with_edge: bool,
        with_weight: bool,
        device: Any,
        seed: int | None,
        kwargs: dict[str, Any],
    ) -> dict[str, Any]:
        """The arguments of a loader of PyG's. kwargs: of torch's DataLoader; GLT's have none for the order of seeds."""
        name = type(self).__name__
        if not isinstance(data, Dataset):
            raise OptionError(f"{name}: data: expected a Dataset, got {type(data).__name__}.")
        if order := sorted({"sampler", "batch_sampler"} & kwargs.keys()):
            raise TypeError(f"{name}() got an unexpected keyword argument {order[0]!r}")
        num_neighbors, with_edge, with_weight, seed = _options_of(
            sampler, data, strategy, num_neighbors, with_edge, with_weight, seed
        )
        graph = data.open()
        self._device, self._fields = output_device(device), data.fields(with_edge=with_edge)
        self._stored = StoredEdges(graph.manifest, data.edge_dir)
        generator = torch.Generator().manual_seed((torch.initial_seed() if seed is None else seed) % (1 << 63))
        given = {name: each for name, each in kwargs.items() if name != "worker_init_fn"}
        return given | {
            "data": graph,
            "num_neighbors": self._stored.fanouts([] if num_neighbors is None else num_neighbors),
            "weight_attr": WEIGHTS if with_weight else None,
            "generator": kwargs.get("generator") or generator,
        }

    def _finished(self, batch: Any) -> Any:
        batch = self._fields(super()._finished(batch).to(self._device))  # type: ignore[misc]
        return pyg_v1_of(batch, self._fields.edge_ids) if self._as_pyg_v1 else batch

    def shutdown(self) -> None:
        self.close()  # type: ignore[attr-defined]


class NeighborLoader(_OverDataset, loader.NeighborLoader):
    """Batches around seed nodes.

    data: a `Dataset`.  num_neighbors: fan-outs, or by edge type.  input_nodes: ids, a mask, or (node type, ids).
    as_pyg_v1: yields (batch_size, n_id, adjs) instead, the widest layer first, each as (edge_index, e_id, size).  device: of
    batches; None: the CPU.  seed: of all draws; None: torch's.  neighbor_sampler: a `NeighborSampler` of the graph of
    ``data``, whose options hold.  strategy: ``random``.
    kwargs: ``num_workers`` sampler processes; other arguments of torch's DataLoader have no effect.
    """

    def __init__(
        self,
        data: Dataset,
        num_neighbors: Any,
        input_nodes: Any = None,
        neighbor_sampler: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = False,
        with_weight: bool = False,
        strategy: str = "random",
        device: Any = None,
        as_pyg_v1: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        options = self._begin(
            data, neighbor_sampler, strategy, num_neighbors, with_edge, with_weight, device, seed, kwargs
        )
        self._as_pyg_v1 = as_pyg_v1
        nodes = _nodes(input_nodes, options["data"])
        super().__init__(input_nodes=nodes, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, **options)


class LinkNeighborLoader(_OverDataset, loader.LinkNeighborLoader):
    """Batches around edges and negatives. edge_label_index: edges [2, S], or (edge type, edges).  edge_label: [S].
    neg_sampling: ``binary``, ``("triplet", 2)`` or a `NegativeSampling`. Without edges, or with an edge type alone,
    all edges are taken. Else as `NeighborLoader`."""

    def __init__(
        self,
        data: Dataset,
        num_neighbors: Any,
        neighbor_sampler: Any = None,
        edge_label_index: Any = None,
        edge_label: Any = None,
        neg_sampling: Any = None,
        with_edge: bool = False,
        with_weight: bool = False,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        strategy: str = "random",
        device: Any = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        options = self._begin(
            data, neighbor_sampler, strategy, num_neighbors, with_edge, with_weight, device, seed, kwargs
        )
        edge_type, edges = _edges(data, edge_label_index)
        given = edges if edge_type is None else (edge_type, edges)
        self._links, swap = link_spec(self._stored, "links", given, edge_label, neg_sampling)
        self._fields = replace(self._fields, swap=swap)
        super().__init__(edge_label_index=edges, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, **options)

    def _make(self, session: Session) -> DistNeighborLoader:
        return session.make_loader(
            replace(self._links, batch_size=max(1, self._links.edge_label_index.shape[1]), **self._spec)
        )


def _nodes(given: Any, graph: Any) -> Any:
    """Seeds as PyG's loaders take them."""
    seeds = read_seeds(given, graph.schema)
    if seeds.split is not None:
        raise OptionError("input_nodes: a Split names seeds of a server. Give ids, or a mask.")
    return seeds.seeds if graph.schema.homogeneous else (seeds.node_type, seeds.seeds)


def _edges(data: Dataset, edge_label_index: Any = None) -> tuple[EdgeType | None, Any]:
    """(edge type, edges [2, S]) of what a loader of edges takes: edges, (edge type, edges); an edge type, or None: all edges."""
    given, edge_type = edge_label_index, None
    if isinstance(given, tuple) and given and isinstance(given[0], str):
        given, edge_type = None, given
    elif isinstance(given, (tuple, list)) and len(given) == 2 and isinstance(given[0], tuple):
        edge_type, given = given
    if given is None:
        if edge_type is None and isinstance(data.graph, Mapping):
            raise OptionError("edge_label_index: give an edge type of a heterogeneous graph.")
        given = torch.stack(data.get_graph(edge_type).topo.to_coo()[:2])
    return edge_type, given


def _options_of(
    sampler: Any, data: Dataset, strategy: str, num_neighbors: Any, with_edge: bool, with_weight: bool, seed: int | None
) -> tuple[Any, bool, bool, int | None]:
    """Fan-outs and so on: those of a sampler, where one is given."""
    if strategy != "random":
        raise OptionError(f"strategy: expected 'random', got {strategy!r}.")
    if sampler is None:
        return num_neighbors, with_edge, with_weight, seed
    if not isinstance(sampler, NeighborSampler) or sampler.graph is not data.graph:
        raise OptionError(
            "neighbor_sampler: expected a NeighborSampler of the graph of this data set: NeighborSampler(dataset.graph, ...)."
        )
    return (
        sampler.num_neighbors,
        with_edge or sampler.with_edge,
        sampler.with_weight,
        sampler.seed if seed is None else seed,
    )
