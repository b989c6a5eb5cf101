"""`NeighborLoader` and `LinkNeighborLoader` with the arguments of PyG's, over a graph in memory or a partition folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler.base import SubgraphType

from glt_lightning.base import EdgeType, OptionError, SamplingOptions, edge_type_str
from glt_lightning.graph import LocalPartition
from glt_lightning.loader.in_memory import Graph, InMemoryGraph, Rows, sampler_output
from glt_lightning.loader.link_spec import LinkSpec
from glt_lightning.loader.neighbor_loader import DistNeighborLoader
from glt_lightning.loader.pyg_inputs import read_edges, read_fanouts, read_negatives, read_nodes, require_graph
from glt_lightning.loader.session import Session
from glt_lightning.loader.spec import LoaderSpec
from glt_lightning.partition import host_array
from glt_lightning.sampling import BatchRequest, batch_key

_REFUSED = {
    "neighbor_sampler": "draws are this package's own. Write a sampling.picker or a sampling.batch_sampler instead.",
    "worker_init_fn": "batches are made by sampler processes without torch, which run no function of yours. Remove it.",
}


class _PygLoader(DataLoader):  # type: ignore[type-arg]
    """A `DataLoader` over positions of seeds, whose batches our samplers make.

    Which seeds a batch has is torch's to say: ``shuffle``, ``sampler``, ``batch_sampler``, ``generator`` and ``drop_last`` mean
    what they mean there, and ``torch.manual_seed`` repeats an epoch.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        *,
        replace: bool,
        subgraph_type: Any,
        disjoint: bool,
        temporal_strategy: str,
        time_attr: str | None,
        weight_attr: str | None,
        transform: Callable[[Any], Any] | None,
        transform_sampler_output: Callable[[Any], Any] | None,
        filter_per_worker: bool | None,
        directed: bool,
        more_edge_types: tuple[EdgeType, ...] = (),
        **kwargs: Any,
    ) -> None:
        self._refuse(data, transform_sampler_output, kwargs)
        self.data, self.num_neighbors, self.time_attr = data, num_neighbors, time_attr
        self.transform, self.transform_sampler_output = transform, transform_sampler_output
        self.custom_cls, self.input_id = kwargs.pop("custom_cls", None), kwargs.pop("input_id", None)
        self._kind = SubgraphType.induced if not directed else SubgraphType(subgraph_type)
        if not directed:
            warnings.warn("directed=False is deprecated: give subgraph_type='induced'.", stacklevel=3)
        in_workers = bool(filter_per_worker and kwargs.get("num_workers"))
        self._wanted = time_attr, weight_attr, more_edge_types, in_workers
        self._memory, self._graph, self._rows = _open(data, *self._wanted)
        self._sampling = SamplingOptions(
            with_edge=True,
            replace=replace,
            time_attr=time_attr,
            temporal_strategy=temporal_strategy,  # type: ignore[arg-type]  # checked there
        )
        bidirectional_later = self._memory is not None and self._kind == SubgraphType.bidirectional
        self._spec = {
            "num_neighbors": read_fanouts(num_neighbors, self._graph.schema, more_edge_types),
            "weight_attr": weight_attr,
            "disjoint": disjoint or time_attr is not None,
            "subgraph_type": "directional" if bidirectional_later else self._kind.value,
            "exact": True,
        }
        self._opened: tuple[Session, DistNeighborLoader] | None = None
        self._workers: Session | None = None
        self._input_ids: Tensor | None = None
        self._loader_options = kwargs

    def _refuse(self, data: Any, transform_sampler_output: Any, kwargs: dict[str, Any]) -> None:
        """Raises `OptionError` for what is not taken; drops what Lightning hands over when it makes a loader anew."""
        where = type(self).__name__
        require_graph(where, data)
        for name, why in _REFUSED.items():
            if kwargs.pop(name, None) is not None:
                raise OptionError(f"{where}: {name}: {why}")
        if transform_sampler_output is not None and not isinstance(data, (Data, HeteroData)):
            raise OptionError(
                f"{where}: transform_sampler_output: batches of a partition folder have their attributes already. Give "
                "transform, or a Data in memory."
            )
        for name in ("dataset", "collate_fn"):
            kwargs.pop(name, None)

    def _over(self, count: int) -> None:
        """Makes a loader of so many seeds, and checks by opening the graph that batches can be made."""
        positions: Any = range(count)
        super().__init__(positions, collate_fn=_as_they_are, **self._loader_options)
        _ = self._engine

    def _make(self, session: Session) -> DistNeighborLoader:
        raise NotImplementedError

    @property
    def _engine(self) -> DistNeighborLoader:
        if self._opened is None:
            session = Session(self._graph, self._sampling)
            self._opened = session, self._make(session)
            finalize(self, session.close)  # its loaders refer to themselves, and would hold the graph
        return self._opened[1]

    def __getstate__(self) -> dict[str, Any]:
        gone = dict.fromkeys(("_opened", "_workers", "_memory", "_graph", "_rows"))
        return {**self.__dict__, **gone}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._memory, self._graph, self._rows = _open(self.data, *self._wanted)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self._memory is not None:
            self._memory.require_unchanged(self.data, nodes=True)
        return self._batches(iter(self._index_sampler))

    def __call__(self, index: Any) -> Any:
        """The batch of the seeds at these positions."""
        if self._memory is not None:
            self._memory.require_unchanged(self.data, nodes=True)
        (batch,) = self._engine.batches(self._requests(iter([index])))
        return self._finished(batch)

    def _batches(self, positions: Iterator[Any]) -> Iterator[Any]:
        with self._samplers() as session:
            for batch in self._engine.batches(self._requests(positions), None if session is None else session.producer):
                made = self._finished(batch)
                del batch  # its memory is used again when the program drops what it was made to
                yield made.pin_memory() if self.pin_memory and torch.cuda.is_available() else made

    @contextmanager
    def _samplers(self) -> Iterator[Session | None]:
        """Who makes the batches of one iteration; None: this process."""
        if not self.num_workers:
            yield None
        elif self.persistent_workers:
            if self._workers is None:
                self._workers = self._start_samplers()
                finalize(self, self._workers.close)
            yield self._workers
        else:
            with self._start_samplers() as session:
                yield session

    def _start_samplers(self) -> Session:
        sampling = replace(self._sampling, num_workers=self.num_workers)
        return Session(self._graph, replace(sampling, timeout_s=self.timeout) if self.timeout else sampling)

    def _requests(self, positions: Iterator[Any]) -> Iterator[BatchRequest]:
        base = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator))
        plan = self._engine.plan
        for number, each in enumerate(positions):
            at = (
                np.atleast_1d(np.asarray(each, dtype=np.int64))
                if not isinstance(each, Tensor)
                else each.view(-1).numpy()
            )
            yield plan.request(number, batch_key(base, plan.loader, 0, number), at)

    def _finished(self, batch: Graph) -> Any:
        made = batch if self._memory is None else self._filled(self._memory, batch)
        if self._memory is None and self.custom_cls is not None:
            made = self.custom_cls.from_dict(batch.to_dict())
        if self._input_ids is not None:
            for store in made.stores:
                if "input_id" in store:
                    store.input_id = self._input_ids[store.input_id]
        return made if self.transform is None else self.transform(made)

    def _filled(self, memory: InMemoryGraph, batch: Graph) -> Graph:
        """The batch with the attributes of ``data``."""
        memory.require_unchanged(self.data)
        out = sampler_output(batch)
        if self._kind == SubgraphType.bidirectional:
            out = out.to_bidirectional()
        rows = self._rows
        if self.transform_sampler_output is not None:
            out, rows = self.transform_sampler_output(out), {}  # it may have chosen other nodes
        return memory.joined(self.data, batch, out, rows)

    def close(self) -> None:
        """Stops what samples. Safe to call twice; a later iteration starts it again."""
        for session in (self._workers, self._opened and self._opened[0]):
            if session is not None:
                session.close()
        self._workers = self._opened = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class NeighborLoader(_PygLoader):
    """Batches around seed nodes, with the arguments and fields of PyG's ``NeighborLoader``; neither pyg-lib nor torch-sparse is
    needed.

    The topology of a ``Data`` is converted to memory of its own, once for all loaders on it; its attributes are not copied, and
    are read in this process. A loader whose ``data`` got other edges raises `DataError`.

    Args:
        data: A ``Data`` or ``HeteroData``, a partition folder or a `LocalPartition`.
        num_neighbors: Fan-outs, first hop first, -1 for all; or by edge type.
        input_nodes: Ids or a mask, all nodes where None; of a heterogeneous graph a node type, or (node type, one of these).
        input_time: Times of the seeds; None: their own.
        replace: Draw with replacement.
        subgraph_type: ``directional``, ``bidirectional`` or ``induced``.
        disjoint: A tree for each seed.
        temporal_strategy: ``uniform`` or ``last``.
        time_attr: Attribute of nodes or edges; neighbours of later times than the seed's are not drawn.
        weight_attr: Attribute of edges, by which neighbours are drawn.
        transform: A function of the batch.
        transform_sampler_output: A function of the ``SamplerOutput``, before attributes are read; for a ``Data``.
        is_sorted: No effect.
        filter_per_worker: True: with ``num_workers``, these read attributes of nodes, from a copy in shared memory whose size is
            logged. Else this process reads them where they lie.
        neighbor_sampler: Refused.
        directed: False: as ``subgraph_type="induced"``.
        **kwargs: ``custom_cls`` and ``input_id`` of PyG's ``NodeLoader``, and arguments of torch's ``DataLoader``.
            ``num_workers`` are sampler processes, which last as long as an iteration, or as the loader with
            ``persistent_workers``.

    Raises:
        OptionError: For arguments that do not fit the graph, for a pair of a feature store and a graph store, and for what is
            refused.

    Example:
        >>> from torch_geometric.data import Data
        >>> ring = torch.stack([torch.arange(10), (torch.arange(10) + 1) % 10])
        >>> data = Data(x=torch.arange(10.0).view(10, 1), edge_index=ring)
        >>> loader = NeighborLoader(data, num_neighbors=[1, 1], input_nodes=torch.tensor([3, 7]), batch_size=2)
        >>> batch = next(iter(loader))
        >>> batch.n_id, batch.x.view(-1), batch.batch_size
        (tensor([3, 7, 2, 6, 1, 5]), tensor([3., 7., 2., 6., 1., 5.]), 2)
        >>> loader([1]).n_id  # of the seed at position 1
        tensor([7, 6, 5])
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        input_nodes: Any = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        **kwargs: Any,
    ) -> None:
        if input_time is not None and time_attr is None:
            raise OptionError("NeighborLoader: input_time: has no effect without time_attr. Give both, or neither.")
        super().__init__(
            data,
            num_neighbors,
            replace=replace,
            subgraph_type=subgraph_type,
            disjoint=disjoint,
            temporal_strategy=temporal_strategy,
            time_attr=time_attr,
            weight_attr=weight_attr,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            directed=directed,
            neighbor_sampler=neighbor_sampler,
            **kwargs,
        )
        self.input_nodes, self.input_time = input_nodes, input_time
        self._node_type, self._seeds, ids = read_nodes(self._graph, input_nodes)
        self._input_ids = ids if self.input_id is None else torch.as_tensor(self.input_id)
        self._over(len(self._seeds))

    def _make(self, session: Session) -> DistNeighborLoader:
        return session.make_loader(self._node_spec())

    def _node_spec(self) -> LoaderSpec:
        return LoaderSpec(
            name="nodes",
            batch_size=max(1, len(self._seeds)),
            seeds=self._seeds,
            node_type=self._node_type,
            input_time=None if self.input_time is None else host_array("input_time", self.input_time),
            **self._spec,
        )


class LinkNeighborLoader(_PygLoader):
    """Batches around edges and negatives, with the arguments and fields of PyG's ``LinkNeighborLoader``.

    Args:
        data: As for `NeighborLoader`.
        num_neighbors: As for `NeighborLoader`.
        edge_label_index: Edges [2, S], all of ``data`` where None; of a heterogeneous graph an edge type, or (edge type, edges).
        edge_label: Labels [S].
        edge_label_time: Times [S]; with ``time_attr``, and only then.
        neg_sampling: ``"binary"``, ``("triplet", 2)``, PyG's ``NegativeSampling`` or a dictionary of its fields, where negatives
            may be edges, as in PyG; or a `NegativeSampling`, whose negatives are none unless it says so.
        neg_sampling_ratio: Number of ``binary`` negatives for each edge.
        replace, subgraph_type, disjoint, temporal_strategy, time_attr, weight_attr: As for `NeighborLoader`.
        transform, transform_sampler_output: As for `NeighborLoader`.
        is_sorted, filter_per_worker, neighbor_sampler, directed: As for `NeighborLoader`.
        **kwargs: As for `NeighborLoader`.

    Raises:
        OptionError: As `NeighborLoader`.

    Example:
        >>> from torch_geometric.data import Data
        >>> ring = torch.stack([torch.arange(10), (torch.arange(10) + 1) % 10])
        >>> loader = LinkNeighborLoader(Data(edge_index=ring, num_nodes=10), [1], batch_size=4, neg_sampling="binary")
        >>> batch = next(iter(loader))
        >>> batch.n_id[batch.edge_label_index[:, :4]].tolist(), batch.edge_label.tolist()
        ([[0, 1, 2, 3], [1, 2, 3, 4]], [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        edge_label_index: Any = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: Any = None,
        neg_sampling_ratio: int | float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        **kwargs: Any,
    ) -> None:
        if (edge_label_time is None) != (time_attr is None):
            missing = "edge_label_time" if edge_label_time is None else "time_attr"
            raise OptionError(
                f"LinkNeighborLoader: '{missing}' is not set. Give time_attr and edge_label_time, or neither."
            )
        require_graph(type(self).__name__, data)
        self._edge_type, self._edges = read_edges(data, edge_label_index)
        stored = self._edge_type is None or not isinstance(data, HeteroData) or self._edge_type in data.edge_types
        super().__init__(
            data,
            num_neighbors,
            replace=replace,
            subgraph_type=subgraph_type,
            disjoint=disjoint,
            temporal_strategy=temporal_strategy,
            time_attr=time_attr,
            weight_attr=weight_attr,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            directed=directed,
            neighbor_sampler=neighbor_sampler,
            more_edge_types=() if stored else (self._edge_type,),  # type: ignore[arg-type]
            **kwargs,
        )
        self.edge_label_index, self.edge_label, self.edge_label_time = edge_label_index, edge_label, edge_label_time
        self.neg_sampling = ("binary", neg_sampling_ratio) if neg_sampling_ratio else neg_sampling
        self._input_ids = None if self.input_id is None else torch.as_tensor(self.input_id)
        self._over(self._edges.shape[1])

    def _make(self, session: Session) -> DistNeighborLoader:
        label, times = (
            None if each is None else host_array("edge_label", each) for each in (self.edge_label, self.edge_label_time)
        )
        return session.make_loader(
            LinkSpec(
                name="links",
                batch_size=max(1, self._edges.shape[1]),
                edge_label_index=self._edges,
                edge_type=None if self._edge_type is None else edge_type_str(self._edge_type),
                edge_label=label,
                edge_label_time=times,
                neg_sampling=read_negatives(self.neg_sampling),
                **self._spec,
            )
        )

    def _requests(self, positions: Iterator[Any]) -> Iterator[BatchRequest]:
        for request in super()._requests(positions):  # as in PyG, nobody looks whether the edges are stored
            yield replace(request, link={name: each for name, each in request.link.items() if name != "look_up"})


def _as_they_are(positions: Any) -> Any:
    """In place of a function that collates; one of the loader's own would be a cycle of references."""
    return positions


def _open(
    data: Any, time_attr: str | None, weight_attr: str | None, more_edge_types: tuple[EdgeType, ...], copied: bool
) -> tuple[InMemoryGraph | None, LocalPartition, Rows]:
    """The graph of a `Data`, None for a partition; the partition that is sampled; the attributes that its sampler reads."""
    if isinstance(data, (Data, HeteroData)):
        memory = InMemoryGraph.of(data, time_attr, weight_attr, more_edge_types, copied)
        return memory, *memory.with_rows(data)
    return None, data if isinstance(data, LocalPartition) else LocalPartition.open(data), {}
