"""`GLTDataModule`: which graph, which seeds, how many neighbours."""

from __future__ import annotations

import os
import secrets
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch_geometric.data import Data, HeteroData

from glt_lightning.base import (
    CacheOptions,
    ClusterOptions,
    DataError,
    EdgeFormat,
    Fanouts,
    LayerwiseOptions,
    NegativeSampling,
    Normalize,
    OptionError,
    PartitionOptions,
    SamplingOptions,
    SubgraphType,
    as_options,
)
from glt_lightning.lightning.batch_checks import check_batches
from glt_lightning.lightning.callbacks.added import add_callbacks, save_with_checkpoints
from glt_lightning.lightning.facts import require_taken, warn_of_hops
from glt_lightning.lightning.link_seeds import BALANCED, LinkSeeds, check_seed_weights, weights_of
from glt_lightning.lightning.log import show_log
from glt_lightning.lightning.seed_data_module import SeedDataModule
from glt_lightning.lightning.strategies.dry_run import give_shapes_early
from glt_lightning.lightning.strategies.notebook import check_ranks
from glt_lightning.lightning.strategies.session_host import SessionHost, Standalone
from glt_lightning.loader import BatchTransform, DistNeighborLoader, LoaderSpec, Session
from glt_lightning.tensors import DistGraph

PredictSplit = Literal["all", "train", "val", "test"]
Task = Literal["node", "link"]
Tree = Literal["end", "example"]
Evaluation = Literal["sampled", "layerwise"]

_NUM_NEIGHBORS: Fanouts = [15, 10, 5]
_PARTITION = PartitionOptions()
_SAMPLING, _CACHE, _LAYERWISE = SamplingOptions(), CacheOptions(), LayerwiseOptions()
_COMPILE = (
    "torch.compile of a whole LightningModule traces Lightning, too, such as self.log(), and torch cannot follow all of it. "
    "Compile the network inside the module instead: self.gnn = torch.compile(self.gnn)."
)


class GLTDataModule(SeedDataModule):
    """Partitions a graph once, and makes loaders of batches around nodes or edges.

    The data module says what is sampled, the Trainer's strategy where: with ``glt_worker`` each rank and its sampler
    processes, with ``glt_server_client`` the graph servers, with any other strategy this object. Batches are PyG ``Data``
    or ``HeteroData``, seeds first.

    Args:
        dataset: ``demo``, a path of an ``.npz`` file or a folder of ``.npy`` files, tables of nodes and edges
            (``{nodes: {path: ...}, edges: {path: ...}}``, see docs/data.md), an OGB name (``ogbn-products``,
            ``ogbl-collab``), the class path of a PyG data set, alone or as ``{class_path: ..., init_args: {...}}``, a
            ``.pt`` file of a saved PyG graph, a sparse matrix with what belongs to it
            (``{matrix: a.npz, x: x.npy, y: y.npy, splits: {train: train.npy}}``); in a script also a PyG ``Data``,
            ``HeteroData`` or data set object. ``None`` uses the finished partition in ``partition.dir``.
        root: Folder of downloads and partitions.
        undirected: ``true`` adds the reverse of every edge; ``null`` leaves the edges as the data set has them.
        transforms: Transforms of PyG that change the graph before it is partitioned, in this order: class paths, such as
            ``torch_geometric.transforms.RandomNodeSplit``, or ``{class_path: ..., init_args: {...}}``. They see the whole
            graph in memory; random ones draw by ``partition.seed``.
            What changes every batch is ``transform``.
        normalize: ``rows`` makes each row of ``x`` sum to 1, as PyG does; ``standardize`` gives each column mean 0 and
            deviation 1.
        num_neighbors: Fan-outs, first hop first, -1 for all neighbours; or a list per edge type, ``{src__rel__dst: [...]}``.
        batch_size: Seeds per batch and rank.
        partition: How the graph is cut into parts.
        sampling: How batches are made.
        cache: Budgets of the caches: remote rows, rows of the partition's files in memory, rows on the GPU that trains.
        eval_num_neighbors: Fan-outs of validation, test and prediction. ``None``: all neighbours in a graph of up to a
            million edges, else twice those of training.
        eval_batch_size: Seeds per batch and rank there. ``None``: as in training.
        eval: How validation and test compute outputs. ``sampled``: from sampled neighbourhoods. ``layerwise``: exactly, each
            layer over the whole graph before the next one (docs/inference.md), without ``eval_num_neighbors``.
        layerwise: How ``eval: layerwise`` computes the layers.
        splits: Own seeds by name (``train``, ``val``, ``test``), in place of those of the data set: a path of an ``.npy``,
            ``.pt`` (a tensor) or ``.txt`` file, a list, an array, of node ids or a mask over all nodes.
        input_type: Node type of own splits and of ``predict_split: all`` in a heterogeneous graph. ``None``: the type that
            has the labels. With ``task: link`` the edge type to predict, ``src__rel__dst``; not needed where there is one.
            Several types are a list: own splits are then given by type, ``{train: {paper: p.npy, author: a.npy}}``, and so are
            ``edge_splits`` and, where types differ, negatives.
        input_time: Times of seed nodes by split, where ``sampling.time_attr`` is set: ``{train: times.npy}``, paths or arrays in
            the order of the split's seeds (``all``: of all nodes, for ``predict_split: all``), by type where seeds are. A split
            without an entry has the times of the nodes themselves. Those of edges are ``time`` of ``edge_splits``.
        seed_weights: How often the seeds of training are drawn: ``balanced``, all classes equally often, or the name of a node
            attribute that holds their weights. Each epoch then draws as many as there are, with replacement. ``None``: every seed
            once in each epoch. Evaluation sees every seed once.
        edge_format: ``edge_index``: the edges of batches are PyG's `EdgeIndex`, sorted by destination, with column pointers.
            ``edge_index_csr``: in training also with the order by source, which sparse products of PyG read in the backward
            pass. ``tensor``: the same edges as a tensor.
        transform: What changes every batch, before it is moved to the device: the class path of a transform, of PyG or your own,
            the path of a function, ``{class_path: ..., init_args: {...}}``, in a script also a callable. It takes a batch and
            returns one. What changes the graph before it is partitioned is ``transforms``.
        disjoint: Every seed is the root of a tree of its own: nodes near two seeds are in the batch twice, drawn independently.
            ``batch`` tells of each node to which seed, or edge to predict, its tree belongs. The CPU samples such batches.
        predict_split: Nodes to predict: all of ``input_type``, or those of a split; with ``task: link`` the edges of a split.
        task: ``node``: seeds are nodes. ``link``: seeds are edges, to be told from pairs of nodes without an edge.
        edge_splits: The edges to predict: ``{train, val, test}``, each a path of node ids [2, S] or [S, 2], or
            ``{edge, label, negatives}`` of such; or a random split, ``{num_val: 0.1, num_test: 0.2}``. ``None``: those of the
            data set. Edges outside ``train`` carry no messages (docs/links.md).
        neg_sampling: How negatives are drawn: ``binary``, ``triplet``, or the options of data.neg_sampling. ``None``: ``binary``,
            unless the edges have labels.
        eval_neg_sampling: The same for validation and test, where no negatives are given. ``None``: as in training, with each
            edge's own.
        exclude_target_edges: Over which of its own edges a batch passes no messages: ``none``, ``self`` or ``reverse`` (also over
            the other direction); or by split, ``{train: reverse}``. ``None``: ``reverse`` in training, else ``none``.
        reverse_edge_types: With ``task: link`` or ``subgraph_type: bidirectional``, edge types of the other direction where they
            are not called ``rev_REL``: ``{a__rel__b: b__back__a}``.
        tree: With ``task: link`` and ``disjoint``: ``example`` puts both ends of an edge, or of a negative, into one tree, as
            SEAL wants it; ``batch`` is then the column of ``edge_label_index``. ``end``: each end has its own.
        subgraph_type: Which edges batches have. ``directional``: those that were sampled. ``bidirectional``: also those of the
            other direction, and where none is stored a flipped copy, of which ``is_flipped`` tells. ``induced``: all edges among
            the nodes of the batch.
        induced_limit: With ``bidirectional`` and ``induced`` the rows of all nodes are read whole; those of more edges than this
            are an error. ``None``: any number.
        ptr: With ``disjoint`` and ``induced``, the subgraph of one seed after the other, with ``ptr`` and ``root_n_id`` as PyG's
            ShaDow loader has them. For modules of one's own: the built-in ones take the first nodes of a batch as its seeds.
        with_row: Batches have ``row`` beside ``n_id``: the number of each node in its type, by which `DistEmbedding` and
            `DistTensor` look it up. A module with a `DistEmbedding` gets it anyway.
        with_target_attrs: Batches have the attributes of those of their edges to predict that are stored, ``edge_label_attr`` of
            ``edge_attr``, and their ids ``edge_label_id``.
        val_edges_at_test: Edges of validation carry messages at test, though not in training and validation (OGB's
            ``use_valedges_as_input``). They are stored, too, with weight 0 in the attribute ``in_training``.
        cluster: Where the processes of the job run, for strategies of ours; the command line hands over its group
            ``cluster``. With ``servers``, the graph is theirs: nothing is downloaded, partitioned or mapped here.

    Raises:
        OptionError, DataError, PartitionError: For options, data or a partition that cannot be used, before training starts.

    Example:
        >>> datamodule = GLTDataModule("graph.npz", num_neighbors=[2, 2], batch_size=4)
        >>> datamodule.num_features, datamodule.num_classes
        (3, 2)
        >>> model = GraphSAGE(datamodule.num_features, datamodule.num_classes, num_layers=2)
        >>> Trainer(max_epochs=1).fit(model, datamodule)
    """

    def __init__(
        self,
        # With Any alone, the command line would make an object of class_path and init_args itself.
        dataset: str | dict[str, Any] | Any = None,
        root: str = "data",
        undirected: bool | None = None,
        normalize: Normalize = "none",
        num_neighbors: Fanouts = _NUM_NEIGHBORS,
        batch_size: int = 1024,
        partition: PartitionOptions = _PARTITION,
        sampling: SamplingOptions = _SAMPLING,
        eval_num_neighbors: Fanouts | None = None,
        eval_batch_size: int | None = None,
        splits: dict[str, Any] | None = None,
        input_type: str | list[str] | None = None,
        predict_split: PredictSplit = "all",
        cluster: ClusterOptions | None = None,
        cache: CacheOptions = _CACHE,
        seed_weights: str | None = None,
        transforms: list[str | dict[str, Any]] | None = None,
        edge_format: EdgeFormat = "tensor",
        task: Task = "node",
        edge_splits: dict[str, Any] | None = None,
        neg_sampling: NegativeSampling | str | dict[str, Any] | None = None,
        eval_neg_sampling: NegativeSampling | str | dict[str, Any] | None = None,
        exclude_target_edges: str | dict[str, str] | None = None,
        reverse_edge_types: dict[str, str] | None = None,
        input_time: dict[str, Any] | None = None,
        with_target_attrs: bool = False,
        val_edges_at_test: bool = False,
        # as for dataset
        transform: str | dict[str, Any] | Any = None,
        with_row: bool = False,
        disjoint: bool = False,
        subgraph_type: SubgraphType = "directional",
        induced_limit: int | None = None,
        tree: Tree = "end",
        ptr: bool = False,
        eval: Evaluation = "sampled",
        layerwise: LayerwiseOptions = _LAYERWISE,
    ) -> None:
        links = LinkSeeds.of(
            task,
            input_type=input_type,
            edge_splits=edge_splits,
            neg_sampling=neg_sampling,
            eval_neg_sampling=eval_neg_sampling,
            exclude_target_edges=exclude_target_edges,
            with_target_attrs=with_target_attrs or None,
            val_edges_at_test=val_edges_at_test or None,
            reverse_edge_types=reverse_edge_types if task == "link" or subgraph_type == "directional" else None,
        )
        super().__init__(
            dataset,
            root,
            undirected=undirected,
            normalize=normalize,
            transforms=transforms,
            input_type=input_type,
            partition=partition,
            num_neighbors=num_neighbors,
            batch_size=batch_size,
            cluster=cluster,
            links=links,
        )
        show_log()
        self.sampling = as_options(SamplingOptions, "sampling", sampling)
        self.cache = as_options(CacheOptions, "cache", cache)
        self.eval_num_neighbors = eval_num_neighbors
        self.eval_batch_size = batch_size if eval_batch_size is None else eval_batch_size
        self.splits, self.predict_split, self.input_time = splits or {}, predict_split, input_time or {}
        self.subgraph_type, self.induced_limit = subgraph_type, induced_limit
        self.reverse_edge_types = reverse_edge_types
        self.transform = BatchTransform.of("transform", transform)
        self._added_features = 0 if self.transform is None else self.transform.added_features
        self.seed_weights, self.edge_format, self.with_row = seed_weights, edge_format, with_row
        self.disjoint, self.tree, self.ptr = disjoint, tree, ptr
        self.eval, self.layerwise = eval, as_options(LayerwiseOptions, "layerwise", layerwise)
        self._check_options()
        self._seed: int | None = self.sampling.seed
        self._loaders: dict[str, DistNeighborLoader] = {}
        self._train_labels: np.ndarray | None = None
        self._standalone = Standalone(self.cluster)

    def _check_options(self) -> None:
        check_seed_weights(self.seed_weights)
        check_batches(self)
        self._check_graph()
        self._check_times()
        if self.links is not None:
            self.links.require_own_weights(self.sampling.weight_attr)

    # Lightning's hooks

    def prepare_data(self) -> None:
        """Partitions the graph if that is not done yet. Lightning calls it in one process per host."""
        if self.trainer is not None:
            check_ranks(self.trainer.world_size)
        if self.dataset is None or self._servers:
            return
        self._check_before_partitioning(None if self.trainer is None else self.trainer.state.fn)
        self._partition_graph()

    def setup(self, stage: str | None = None) -> None:
        """Opens the graph. Who samples it starts with the first loader."""
        host = self._host()
        self._graph = host.open_graph(None if self._servers else self.partition_dir, self.sampling, self.cache)
        if self.trainer is not None:
            self._require_split(stage, self._split_names())
            require_taken(self.sampling.aggregate_first, self.trainer.lightning_module)
        self._seed = host.share_seed(self._seed if self._seed is not None else _fresh_seed())
        if self.trainer is not None:
            add_callbacks(self.trainer, self)
        if stage == "fit" and self.trainer is not None:
            give_shapes_early(self.trainer)
            # other subgraphs have edges between any two hops, and ShaDow's models are deeper than they have hops
            for name in ("num_neighbors", "eval_num_neighbors") if self.subgraph_type == "directional" else ():
                warn_of_hops(name, getattr(self, name), self.trainer.lightning_module)

    def train_dataloader(self) -> DistNeighborLoader:
        # Lightning says that it turns shuffling off when overfitting, but can only do so for torch's DataLoader.
        overfit = bool(getattr(self.trainer, "overfit_batches", 0))
        loader = self._make_loader("train", "train", shuffle=not overfit)
        self._check_own_overlap()
        return loader

    def val_dataloader(self) -> DistNeighborLoader | list[Any]:
        fitting = self.trainer is not None and self.trainer.state.fn == "fit"
        if fitting and not self._has_seeds("val"):
            which = "split 'val' has no seeds" if "val" in self._split_names() else "the data set has no split 'val'"
            rank_zero_info(f"{which}: training without validation.")
            return []
        return self._make_loader("val", "val")

    def test_dataloader(self) -> DistNeighborLoader:
        return self._make_loader("test", "test")

    def predict_dataloader(self) -> DistNeighborLoader | list[Any]:
        own = getattr(self.trainer and self.trainer.lightning_module, "loaders_of", None)
        if own is not None:  # a module that is computed layer by layer
            return own(self)
        return self._make_loader("predict", None if self.predict_split == "all" else self.predict_split)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        session = self._host().session
        if (module := self._moving_module()) is not None:
            with nullcontext() if session is None else session.in_flight.held(batch, device):
                moved = module.transfer_batch_to_device(batch, device, dataloader_idx)
            return session.complete(moved) if session is not None and isinstance(moved, (Data, HeteroData)) else moved
        ours = session is not None and isinstance(batch, (Data, HeteroData)) and device.type in ("cpu", "cuda")
        if session is None or not ours:
            return super().transfer_batch_to_device(batch, device, dataloader_idx)
        return session.to_device(batch, device)

    def _moving_module(self) -> LightningModule | None:
        """The module, if it moves batches itself. Lightning asks it where the data module has no such hook, and ours is none of
        the user's; one of a subclass comes first."""
        module = None if self.trainer is None else self.trainer.lightning_module
        if module is None or type(self).transfer_batch_to_device is not GLTDataModule.transfer_batch_to_device:
            return None
        return module if is_overridden("transfer_batch_to_device", module) else None

    def teardown(self, stage: str | None = None) -> None:
        self._close()

    def on_exception(self, exception: BaseException) -> None:
        if type(exception).__module__.startswith("torch._dynamo"):
            exception.add_note(_COMPILE)
        self._close()

    def state_dict(self) -> dict[str, Any]:
        return {"sampling_seed": self._seed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Lightning calls this after setup() and before it asks for loaders.
        seed = state_dict.get("sampling_seed")
        if seed is not None and type(seed) is not int:
            raise OptionError(
                f"sampling_seed: expected an integer, the checkpoint has {seed!r:.80}. It is damaged; use another checkpoint."
            )
        if self.sampling.seed is not None or seed in (None, self._seed):
            return
        self._seed, host = seed, self._host()
        if host.session is not None:  # opened early, for the tables of embeddings
            host.open_session(self._opened(), self.sampling, seed, self.cache)

    # Seeds and loaders

    def _make_loader(self, name: str, split: str | None, *, shuffle: bool = False) -> DistNeighborLoader:
        """A loader over a split, or over all nodes; the one it replaces is closed."""
        if (old := self._loaders.pop(name, None)) is not None:
            old.close(
                f"{name}_dataloader() was called again, and its new loader replaces this one. Iterate the new one."
            )
        session, spec = self._session(), self._loader_spec(name, split, shuffle=shuffle)
        if name == "train" and self.seed_weights is not None and isinstance(spec, LoaderSpec):
            spec = replace(spec, seed_weights=self._seed_weights(session, spec))
        loader = session.make_loader(spec)
        if not len(loader.plan.seeds):
            raise DataError(f"loader {name!r}: no seeds, so there is nothing to evaluate. Give some as data.splits.")
        self._loaders[name] = loader
        return loader

    def make_loader(self, spec: Any) -> DistNeighborLoader:
        """A loader of one's own over the graph, as `Session.make_loader`, from `setup` to `teardown`. All ranks make it."""
        return self._session().make_loader(spec)

    def _seed_weights(self, session: Session, spec: LoaderSpec) -> np.ndarray:
        assert self.seed_weights is not None
        if self.seed_weights == BALANCED:
            return weights_of(BALANCED, self.train_labels())
        try:
            return weights_of(self.seed_weights, session.read_seeds(spec, self.seed_weights))
        except DataError as error:
            raise DataError(f"seed_weights: {error}") from None

    def train_labels(self) -> np.ndarray:
        """Labels [S] or [S, D] of the training seeds, in the user's order; the same on every rank, whoever has the graph.
        A collective call before the first loader is made."""
        if self._train_labels is None:
            self._train_labels = self._session().read_seeds(self._node_spec("train", "train"), "y")
        return self._train_labels

    @property
    def dist_graph(self) -> DistGraph:
        """The graph of the job by row, with tensors of one's own, under every strategy: from `setup` to `teardown`. The first
        access is a collective call, unless a loader was made before."""
        self._session()
        return self._host().graph

    def _host(self) -> SessionHost:
        """Who opens the graph and its session: the strategy if it is ours, else this object."""
        return self._standalone.under(self._running_trainer())

    def _session(self) -> Session:
        """Makes the loaders of this rank. The first call opens it, and is a collective one."""
        graph, host = self._opened(), self._host()
        if host.session is not None:
            return host.session
        assert self._seed is not None
        session = host.open_session(graph, self.sampling, self._seed, self.cache)
        if self.trainer is not None:
            save_with_checkpoints(self.trainer, host.graph)
        return session

    def _close(self) -> None:
        self._loaders.clear()
        self._train_labels = None
        self._standalone.close()


def _fresh_seed() -> int:
    """Lightning's global seed, else a new one."""
    given = os.environ.get("PL_GLOBAL_SEED")
    return int(given) if given is not None else secrets.randbits(62)
