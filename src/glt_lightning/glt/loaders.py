"""GraphLearn-for-PyTorch's loaders of one machine: a `Dataset` in, batches with GLT's fields and PyG's out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from glt_lightning.errors import OptionError
from glt_lightning.glt.dataset import Dataset
from glt_lightning.glt.links import link_spec
from glt_lightning.glt.loading import (
    GLTLoader,
    as_pyg_v1 as pyg_v1_of,
    every_epoch_anew,
    node_spec,
    output_device,
    own_edges,
    stored_edges,
)
from glt_lightning.glt.sample_prob import NeighborSampler
from glt_lightning.loader import LoaderContext
from glt_lightning.options import SamplingOptions
from glt_lightning.types import EdgeType

_NO_EFFECT = {"num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "generator", "worker_init_fn"}


class _MemoryLoader(GLTLoader):
    """A loader over a `Dataset`. kwargs: of torch's DataLoader, which samples nothing here."""

    def __init__(
        self,
        data: Dataset,
        with_edge: bool,
        device: Any,
        seed: int | None,
        batch_size: int,
        drop_last: bool,
        kwargs: Any,
    ) -> None:
        if not isinstance(data, Dataset):
            raise OptionError(f"{type(self).__name__}: data: expected a Dataset, got {type(data).__name__}.")
        if unknown := sorted(set(kwargs) - _NO_EFFECT):
            raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument {unknown[0]!r}")
        self.batch_size, self.drop_last, self.data = batch_size, drop_last, data
        workers = int(kwargs.get("num_workers", 0))
        self._context = LoaderContext(
            data.open(),
            SamplingOptions(with_edge=with_edge, num_workers=workers),
            seed=(torch.initial_seed() if seed is None else seed) % (1 << 63),
            device=output_device(device),
        )
        self._fields = data.fields(with_edge=with_edge)

    def shutdown(self) -> None:
        self.close()


class NeighborLoader(_MemoryLoader):
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
        num_neighbors, with_edge, with_weight, seed = _options_of(
            neighbor_sampler, data, strategy, num_neighbors, with_edge, with_weight, seed
        )
        super().__init__(data, with_edge or as_pyg_v1, device, seed, batch_size, drop_last, kwargs)
        context, self._as_pyg_v1 = self._context, as_pyg_v1
        fanouts = stored_edges(context, data.edge_dir).fanouts(num_neighbors)
        spec = node_spec(context, "nodes", input_nodes, fanouts, batch_size, shuffle, with_weight)
        self._loader = every_epoch_anew(context.make_loader(spec))

    def __iter__(self) -> Any:
        batches = super().__iter__()
        return (pyg_v1_of(batch, self._fields.edge_ids) for batch in batches) if self._as_pyg_v1 else batches


class NodeLoader(NeighborLoader):
    """The same with the options of a sampler. node_sampler: a `NeighborSampler` of the graph of ``data``.  kwargs: further
    arguments of `NeighborLoader`, such as ``batch_size``.

    >>> data = glt.data.Dataset()
    >>> data.init_graph(np.array([[0, 0, 1], [1, 2, 2]]), graph_mode="CPU")
    >>> sampler = glt.sampler.NeighborSampler(data.graph, [2])
    >>> [batch.node.tolist() for batch in glt.loader.NodeLoader(data, sampler, torch.tensor([0, 1]))]
    [[0, 1, 2], [1, 2]]
    """

    def __init__(self, data: Dataset, node_sampler: Any, input_nodes: Any, device: Any = None, **kwargs: Any) -> None:
        super().__init__(data, None, input_nodes, node_sampler, device=device, **kwargs)


class SubGraphLoader(_MemoryLoader):
    """Batches of all edges among seeds and their neighbours. num_neighbors: None: the seeds alone. Else as `NeighborLoader`."""

    def __init__(
        self,
        data: Dataset,
        input_nodes: Any,
        num_neighbors: Any = None,
        neighbor_sampler: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = False,
        with_weight: bool = False,
        strategy: str = "random",
        device: Any = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        num_neighbors, with_edge, with_weight, seed = _options_of(
            neighbor_sampler, data, strategy, num_neighbors, with_edge, with_weight, seed
        )
        super().__init__(data, with_edge, device, seed, batch_size, drop_last, kwargs)
        context = self._context
        fanouts = stored_edges(context, data.edge_dir).fanouts([] if num_neighbors is None else num_neighbors)
        spec = node_spec(context, "subgraphs", input_nodes, fanouts, batch_size, shuffle, with_weight)
        self._loader = every_epoch_anew(context.make_subgraph_loader(spec))


class LinkNeighborLoader(_MemoryLoader):
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
        num_neighbors, with_edge, with_weight, seed = _options_of(
            neighbor_sampler, data, strategy, num_neighbors, with_edge, with_weight, seed
        )
        super().__init__(data, with_edge, device, seed, batch_size, drop_last, kwargs)
        context = self._context
        stored = stored_edges(context, data.edge_dir)
        edge_type, edges = get_edge_label_index(data, edge_label_index)
        given = edges if edge_type is None else (edge_type, edges)
        spec, swap = link_spec(stored, "links", given, edge_label, neg_sampling)
        spec = own_edges(context, spec, stored.fanouts(num_neighbors), batch_size, shuffle, with_weight)
        self._loader = every_epoch_anew(context.make_link_loader(spec))
        self._fields = data.fields(with_edge=with_edge, swap=swap)


class LinkLoader(LinkNeighborLoader):
    """The same with the options of a sampler. link_sampler: a `NeighborSampler` of the graph of ``data``.  edge_dir: the one of
    ``data``, which holds.  kwargs: further arguments of `LinkNeighborLoader`, such as ``batch_size``."""

    def __init__(
        self,
        data: Dataset,
        link_sampler: Any,
        edge_label_index: Any = None,
        edge_label: Any = None,
        neg_sampling: Any = None,
        device: Any = None,
        edge_dir: str = "out",
        **kwargs: Any,
    ) -> None:
        super().__init__(data, None, link_sampler, edge_label_index, edge_label, neg_sampling, device=device, **kwargs)


def get_edge_label_index(data: Dataset, edge_label_index: Any = None) -> tuple[EdgeType | None, Any]:
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
