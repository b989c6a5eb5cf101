"""GraphLearn-for-PyTorch's loaders of one machine: a `Dataset` in, batches with GLT's fields and PyG's out."""

from __future__ import annotations

from typing import Any

import torch

from glt_lightning.errors import OptionError
from glt_lightning.glt.dataset import Dataset
from glt_lightning.glt.links import link_spec
from glt_lightning.glt.loading import (
    GLTLoader,
    every_epoch_anew,
    node_spec,
    output_device,
    own_edges,
    stored_edges,
)
from glt_lightning.loader import LoaderContext, layers
from glt_lightning.options import SamplingOptions
from glt_lightning.types import EDGE

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
    batches; None: the CPU.  seed: of all draws; None: torch's.  neighbor_sampler: not taken.  strategy: ``random``.
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
        _plain(neighbor_sampler, strategy)
        super().__init__(data, with_edge or as_pyg_v1, device, seed, batch_size, drop_last, kwargs)
        context, self._as_pyg_v1 = self._context, as_pyg_v1
        fanouts = stored_edges(context, data.edge_dir).fanouts(num_neighbors)
        spec = node_spec(context, "nodes", input_nodes, fanouts, batch_size, shuffle, with_weight)
        self._loader = every_epoch_anew(context.make_loader(spec))

    def __iter__(self) -> Any:
        return map(self._pyg_v1, super().__iter__()) if self._as_pyg_v1 else super().__iter__()

    def _pyg_v1(self, batch: Any) -> tuple[int, Any, list[tuple[Any, Any, tuple[int, ...]]]]:
        adjs, own = [], self._fields.edge_ids
        for layer in layers(batch):
            ids = layer.edata["_ID"]
            adjs.append((layer.edge_index, ids if own is None else own(EDGE, ids), tuple(map(int, layer.size))))
        return batch.batch_size, batch.n_id, adjs


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
        _plain(neighbor_sampler, strategy)
        super().__init__(data, with_edge, device, seed, batch_size, drop_last, kwargs)
        context = self._context
        fanouts = stored_edges(context, data.edge_dir).fanouts([] if num_neighbors is None else num_neighbors)
        spec = node_spec(context, "subgraphs", input_nodes, fanouts, batch_size, shuffle, with_weight)
        self._loader = every_epoch_anew(context.make_subgraph_loader(spec))


class LinkNeighborLoader(_MemoryLoader):
    """Batches around edges and negatives. edge_label_index: edges [2, S], or (edge type, edges).  edge_label: [S].
    neg_sampling: ``binary``, ``("triplet", 2)`` or a `NegativeSampling`. Else as `NeighborLoader`."""

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
        _plain(neighbor_sampler, strategy)
        super().__init__(data, with_edge, device, seed, batch_size, drop_last, kwargs)
        context = self._context
        stored = stored_edges(context, data.edge_dir)
        spec, swap = link_spec(stored, "links", edge_label_index, edge_label, neg_sampling)
        spec = own_edges(context, spec, stored.fanouts(num_neighbors), batch_size, shuffle, with_weight)
        self._loader = every_epoch_anew(context.make_link_loader(spec))
        self._fields = data.fields(with_edge=with_edge, swap=swap)


def _plain(neighbor_sampler: Any, strategy: str) -> None:
    if neighbor_sampler is not None:
        raise OptionError("neighbor_sampler: loaders make their own. Leave it out, or call its sample_from_nodes.")
    if strategy != "random":
        raise OptionError(f"strategy: expected 'random', got {strategy!r}.")
