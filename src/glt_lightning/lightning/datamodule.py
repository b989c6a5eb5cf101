"""`GLTDataModule`: which graph, which seeds, how many neighbours."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch_geometric.data import Data, HeteroData

from glt_lightning.cluster.placement import placed_parts
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.manifest import MANIFEST, Manifest
from glt_lightning.errors import DataError, OptionError, PartitionError
from glt_lightning.lightning.callbacks.monitor import add_monitor
from glt_lightning.lightning.callbacks.run_report import add_report
from glt_lightning.lightning.eval_fanouts import eval_fanouts
from glt_lightning.lightning.graph_facts import GraphFacts
from glt_lightning.lightning.label_facts import LabelFacts, class_names_of
from glt_lightning.lightning.layers import warn_of_hops
from glt_lightning.lightning.log import show_log
from glt_lightning.lightning.own_ids import have_ids, own_ids
from glt_lightning.lightning.own_splits import SPLIT_OF, read_split, require_split
from glt_lightning.lightning.seed_weights import BALANCED, check_seed_weights, weights_of
from glt_lightning.lightning.strategies.base import GLTStrategy
from glt_lightning.lightning.strategies.dry_run import give_shapes_early
from glt_lightning.lightning.strategies.notebook import check_ranks
from glt_lightning.lightning.strategies.server_facts import ask_manifest
from glt_lightning.lightning.strategies.standalone import GraphHost, Standalone
from glt_lightning.loader import DistNeighborLoader, LoaderSpec
from glt_lightning.loader.transfer import CopiesInFlight
from glt_lightning.options import (
    CacheOptions,
    ClusterOptions,
    Fanouts,
    Normalize,
    PartitionOptions,
    SamplingOptions,
    as_options,
    parse_fanouts,
)
from glt_lightning.page.numbers import counted
from glt_lightning.partition import GraphSource, open_source, partition_dir, partition_graph
from glt_lightning.partition.follow import follow_batches
from glt_lightning.partition.splits import check_overlap
from glt_lightning.producer.base import SampledGraph

PredictSplit = Literal["all", "train", "val", "test"]

_NUM_NEIGHBORS: Fanouts = [15, 10, 5]
_PARTITION = PartitionOptions()
_SAMPLING, _CACHE = SamplingOptions(), CacheOptions()
_SPLITS = ("train", "val", "test")
_NO_GRAPH = (
    "dataset: not given. Name one (demo, graph.npz, ogbn-products), a finished partition.dir, or cluster.servers."
)

_COMPILE = (
    "torch.compile of a whole LightningModule traces Lightning, too, such as self.log(), and torch cannot follow all of it. "
    "Compile the network inside the module instead: self.gnn = torch.compile(self.gnn)."
)


class GLTDataModule(LightningDataModule):
    """Partitions a graph once, and makes loaders of its batches for node classification.

    What is sampled is said here; where, by the Trainer's strategy: with ``glt_worker`` each rank and its sampler
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
        normalize: ``rows`` makes each row of ``x`` sum to 1, as PyG does; ``standardize`` gives each column mean 0 and
            deviation 1.
        num_neighbors: Fan-outs, first hop first, -1 for all neighbours; or a list per edge type, ``{src__rel__dst: [...]}``.
        batch_size: Seeds per batch and rank.
        partition: How the graph is cut into parts.
        sampling: How batches are made.
        cache: What is kept near the samplers.
        eval_num_neighbors: Fan-outs of validation, test and prediction. ``None``: all neighbours in a graph of up to a
            million edges, else twice those of training.
        eval_batch_size: Seeds per batch and rank there. ``None``: as in training.
        splits: Own seeds by name (``train``, ``val``, ``test``), in place of those of the data set: a path of an ``.npy``,
            ``.pt`` (a tensor) or ``.txt`` file, a list, an array, of node ids or a mask over all nodes.
        input_type: Node type of own splits and of ``predict_split: all`` in a heterogeneous graph. ``None``: the type that
            has the labels.
        seed_weights: How often the seeds of training are drawn: ``balanced``, all classes equally often, or the name of a node
            attribute that holds their weights. Each epoch then draws as many as there are, with replacement. ``None``: every seed
            once in each epoch. Evaluation sees every seed once.
        predict_split: Nodes to predict: all of ``input_type``, or those of a split.
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
        input_type: str | None = None,
        predict_split: PredictSplit = "all",
        cluster: ClusterOptions | None = None,
        cache: CacheOptions = _CACHE,
        seed_weights: str | None = None,
        transforms: list[str | dict[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        show_log()
        self.dataset, self.root, self.transforms = dataset, root, transforms or []
        self.undirected, self.normalize = undirected, normalize
        self.partition = as_options(PartitionOptions, "partition", partition)
        self.sampling = as_options(SamplingOptions, "sampling", sampling)
        self.cache = as_options(CacheOptions, "cache", cache)
        self.num_neighbors, self.batch_size = num_neighbors, batch_size
        self.eval_num_neighbors = eval_num_neighbors
        self.eval_batch_size = batch_size if eval_batch_size is None else eval_batch_size
        self.splits, self.input_type, self.predict_split = splits or {}, input_type, predict_split
        self.cluster = None if cluster is None else as_options(ClusterOptions, "cluster", cluster)
        self.seed_weights = seed_weights
        self._check_options()
        self.cache = self.cache.assuming(num_neighbors, batch_size)
        self._seed: int | None = self.sampling.seed
        self._graph: LocalPartition | SampledGraph | None = None
        self._loaders: dict[str, DistNeighborLoader] = {}
        self._train_labels: np.ndarray | None = None
        self._standalone = Standalone()
        self._in_flight = CopiesInFlight()

    @property
    def trainer(self) -> Trainer | None:
        """Who runs this data module; Lightning sets it when the run begins."""
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Trainer | None) -> None:
        self._trainer = trainer
        strategy = None if trainer is None else trainer.strategy
        if isinstance(strategy, GLTStrategy) and self.cluster is not None:
            strategy.adopt_cluster(self.cluster)  # before it sets up the processes that the options are about

    def _check_options(self) -> None:
        check_seed_weights(self.seed_weights)
        if self.dataset is None and self.partition.dir is None and not self._servers:
            raise OptionError(_NO_GRAPH)
        for name in ("batch_size", "eval_batch_size"):
            size = getattr(self, name)
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise OptionError(f"{name}: expected an integer >= 1, got {size!r}.")
        for name in ("num_neighbors", "eval_num_neighbors"):
            given = getattr(self, name)
            if name == "eval_num_neighbors" and given is None:
                continue
            for key, fanouts in given.items() if isinstance(given, Mapping) else [(None, given)]:
                parse_fanouts(fanouts, name if key is None else f"{name}[{key}]")
        if self.normalize not in ("none", "rows", "standardize"):
            raise OptionError(f"normalize: expected none, rows or standardize; got {self.normalize!r}.")
        if unknown := set(self.splits) - set(_SPLITS):
            raise OptionError(f"splits: expected any of {', '.join(_SPLITS)}; got {', '.join(sorted(unknown))}.")
        if self.predict_split not in ("all", *_SPLITS):
            raise OptionError(f"predict_split: expected all, train, val or test; got {self.predict_split!r}.")

    # What a model is built from. Answered by a server or from the partition if there is one, else from a look at the
    # data set.

    @property
    def num_features(self) -> int | dict[str, int | None] | None:
        """Width of ``x``; per node type in a heterogeneous graph."""
        return self._per_type(self._facts.num_features)

    @property
    def num_categories(self) -> list[int] | dict[str, list[int]] | None:
        """Number of codes of each column of ``x_codes``; per node type that has some in a heterogeneous graph."""
        found = {t: list(counts) for t, counts in self._facts.num_categories.items()}
        return self._per_type(found) if found else None

    @property
    def num_nodes(self) -> int | dict[str, int]:
        """Number of nodes; per node type in a heterogeneous graph."""
        return self._per_type(self._facts.num_nodes)

    @property
    def num_classes(self) -> int | None:
        """Number of classes of the labels, None if there are none."""
        return self._facts.num_classes

    @property
    def label_facts(self) -> LabelFacts | None:
        """What the labels are: kind, width, number and names of classes; None if there are none."""
        labels = self._facts.labels
        if labels is None or labels["class_names"] is not None or self.dataset is None or self._servers:
            return labels
        return {**labels, "class_names": class_names_of(self._source)}  # a partition of an earlier release has no names

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes 0, 1, ...; None where the data names none."""
        labels = self.label_facts
        if (
            labels is None and self._graph is not None
        ):  # nodes to predict, with the classes of an encoding that is applied
            names = self._graph.manifest.class_names
            return None if names is None else list(names)
        return None if labels is None else labels["class_names"]

    @property
    def metadata(self) -> tuple[list[str], list[tuple[str, str, str]]] | None:
        """Node and edge types of a heterogeneous graph, as PyG's ``HeteroData.metadata()``; None otherwise."""
        schema = self._facts.schema
        return None if schema.homogeneous else (list(schema.node_types), list(schema.edge_types))

    @property
    def target_type(self) -> str | None:
        """Node type of the seeds in a heterogeneous graph."""
        facts = self._facts
        return None if facts.schema.homogeneous else self.input_type or facts.target_type

    @property
    def partition_dir(self) -> Path:
        """Folder of the partition, whether it exists or not."""
        if self.dataset is None:
            if self.partition.dir is None:
                raise OptionError(_NO_GRAPH)
            return Path(str(self.partition.dir))
        return partition_dir(self.root, self._source, self.partition, self.undirected, self.normalize)

    @property
    def partition_options(self) -> PartitionOptions:
        """``partition`` with fan-outs and batch size: if not given, those of a partition that exists, else those of training."""
        return follow_batches(self.partition, self.partition_dir, self.num_neighbors, self.batch_size)

    @cached_property
    def _source(self) -> GraphSource:
        return open_source(self.dataset, self.root, self.transforms, self.partition.seed)

    @property
    def _servers(self) -> list[str]:
        """Who has the graph, if not this host."""
        trainer = self._running_trainer()
        strategy = None if trainer is None else trainer.strategy
        if isinstance(strategy, GLTStrategy):
            return strategy.servers
        return [] if self.cluster is None or strategy is not None else self.cluster.servers

    @cached_property
    def _facts(self) -> GraphFacts:
        if self._graph is not None:
            return GraphFacts.of_manifest(self._graph.manifest)
        if self._servers:
            return GraphFacts.of_manifest(ask_manifest(self._cluster))
        if self._is_partitioned():
            return GraphFacts.of_manifest(Manifest.load(self.partition_dir))
        if self.dataset is None:
            raise PartitionError(
                f"{self.partition_dir}: no finished partition is there, and no dataset is given to make it."
            )
        return GraphFacts.of_source(self._source, bool(self.undirected), self.partition.allow)

    @property
    def _cluster(self) -> ClusterOptions:
        trainer = self._running_trainer()
        strategy = None if trainer is None else trainer.strategy
        return strategy.options if isinstance(strategy, GLTStrategy) else self.cluster or ClusterOptions()

    def _per_type(self, values: Mapping[str, Any]) -> Any:
        return next(iter(values.values())) if self._facts.schema.homogeneous else dict(values)

    def _is_partitioned(self) -> bool:
        return (self.partition_dir / MANIFEST).is_file()

    # Lightning's hooks

    def prepare_data(self) -> None:
        """Partitions the graph if that is not done yet. Lightning calls it in one process per host."""
        if self.trainer is not None:
            check_ranks(self.trainer.world_size)
        if self.dataset is None or self._servers:
            return
        self._require_split(None if self.trainer is None else self.trainer.state.fn, self._facts.splits)
        if not self._is_partitioned():
            self._check_may_partition()
            rank_zero_info(
                f"partitioning {self._source.name} into {counted(self.partition.num_parts, 'part')}: {self.partition_dir}"
            )
        partition_graph(
            self._source,
            self.partition_dir,
            self.partition_options,
            undirected=self.undirected,
            normalize=self.normalize,
        )

    def _check_may_partition(self) -> None:
        hosts = 1 if self.trainer is None else self.trainer.num_nodes
        if hosts > 1 and self.prepare_data_per_node:
            assert self.trainer is not None
            parts = placed_parts(self.trainer.node_rank, hosts, self.partition.num_parts)
            raise PartitionError(
                f"{self.partition_dir}: no partition is there, and a job of {hosts} hosts does not make it on each. "
                "Partition on one host and copy the folder (with strategy glt_worker, this host needs of the parts only "
                f"{', '.join(map(str, parts))}), or set prepare_data_per_node = False if all hosts share root."
            )

    def setup(self, stage: str | None = None) -> None:
        """Opens the graph. Who samples it starts with the first loader."""
        host = self._host()
        self._graph = host.open_graph(None if self._servers else self.partition_dir, self.sampling, self.cache)
        if self.trainer is not None:
            self._require_split(stage, self._graph.manifest.splits)
        self._seed = host.share_seed(self._seed if self._seed is not None else _fresh_seed())
        if stage == "fit" and self.trainer is not None:
            add_monitor(self.trainer)
            add_report(self.trainer)
            give_shapes_early(self.trainer)
            for name in ("num_neighbors", "eval_num_neighbors"):
                warn_of_hops(name, getattr(self, name), self.trainer.lightning_module)

    def _require_split(self, stage: str | None, stored: Collection[str]) -> None:
        """Raises `DataError` unless there are seeds for a stage of the Trainer: before hours of partitioning, not after."""
        wanted = self.predict_split if stage == "predict" else SPLIT_OF.get(stage or "", "all")
        if wanted != "all":
            require_split(wanted, {*stored, *self.splits})

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

    def predict_dataloader(self) -> DistNeighborLoader:
        return self._make_loader("predict", None if self.predict_split == "all" else self.predict_split)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        if not isinstance(batch, (Data, HeteroData)):
            return super().transfer_batch_to_device(batch, device, dataloader_idx)
        if device.type == "cuda":
            moved = self._in_flight.copy(batch, device)
        else:
            moved = super().transfer_batch_to_device(batch, device, dataloader_idx)
        return self._host().complete(moved)

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
        if self.sampling.seed is None and seed is not None:
            self._seed = seed

    # Seeds and loaders

    def _make_loader(self, name: str, split: str | None, *, shuffle: bool = False) -> DistNeighborLoader:
        """A loader over a split, or over all nodes; the one it replaces is closed."""
        if (old := self._loaders.pop(name, None)) is not None:
            old.close()
        host, spec = self._open_host(), self._spec(name, split, shuffle=shuffle)
        if name == "train" and self.seed_weights is not None:
            spec = replace(spec, seed_weights=self._seed_weights(host, spec))
        loader = host.make_loader(spec)
        if not len(loader.plan.seeds):
            raise DataError(f"loader {name!r}: no seeds, so there is nothing to evaluate. Give some as data.splits.")
        self._loaders[name] = loader
        return loader

    def _spec(self, name: str, split: str | None, *, shuffle: bool = False) -> LoaderSpec:
        train = name == "train"
        seeds, split = self._find_seeds(split)
        return LoaderSpec(
            name=name,
            split=split,
            seeds=seeds,
            node_type=None if split is not None else self._node_type(),
            num_neighbors=self.num_neighbors if train else self._eval_num_neighbors,
            batch_size=self.batch_size if train else self.eval_batch_size,
            shuffle=shuffle,
            exact=not train,
        )

    def _seed_weights(self, host: GraphHost, spec: LoaderSpec) -> np.ndarray:
        assert self.seed_weights is not None
        if self.seed_weights == BALANCED:
            return weights_of(BALANCED, self.train_labels())
        try:
            return weights_of(self.seed_weights, host.read_seeds(spec, self.seed_weights))
        except DataError as error:
            raise DataError(f"seed_weights: {error}") from None

    def user_ids(self, n_id: np.ndarray) -> np.ndarray | None:
        """What the user's table calls the nodes that were predicted, int64 or text [K]; None where ``n_id`` is all there is."""
        manifest = self._opened().manifest
        split = manifest.splits.get(self.predict_split)
        stored = split is not None and self.predict_split not in self.splits
        node_type = (
            split.node_type if stored and split is not None else self._node_type() or manifest.schema.node_types[0]
        )
        ids = own_ids(manifest, self.root, n_id, node_type)
        if ids is None and have_ids(self.dataset, node_type):
            rank_zero_info(
                f"the converted tables are not below {self.root}: predictions name nodes by n_id, their row in the table. Set "
                "data.root to where the graph was partitioned, or look up ids with glt_lightning.partition.sources.user_ids."
            )
        return ids

    @property
    def graph_hash(self) -> str | None:
        """Of what the partition was made of and how; None before the graph is open."""
        return None if self._graph is None else self._graph.manifest.options_hash

    def train_labels(self) -> np.ndarray:
        """Labels [S] or [S, D] of the training seeds, in the user's order; the same on every rank, whoever has the graph.
        A collective call before the first loader is made."""
        if self._train_labels is None:
            self._train_labels = self._open_host().read_seeds(self._spec("train", "train"), "y")
        return self._train_labels

    def _find_seeds(self, split: str | None) -> tuple[np.ndarray | None, str | None]:
        """(the user's own seeds, name of a stored split); neither for all nodes."""
        if split is None:
            return None, None
        if split in self.splits:
            return read_split(split, self.splits[split]), None
        require_split(split, self._split_names())
        return None, split

    def _check_own_overlap(self) -> None:
        """Splits that are stored were compared when they were; here those of ``splits`` with each other and with these."""
        graph = self._opened()
        for other in ("val", "test"):
            pair = ("train", other)
            if other in self._split_names() and set(pair) & set(self.splits):
                seeds = {name: self._spec(name, name).find_seeds(graph) for name in pair}
                typed = {name: (graph.schema.node_types[s.node_type], s.gids) for name, s in seeds.items()}
                check_overlap(typed, self.partition.allow)

    @cached_property
    def _eval_num_neighbors(self) -> Fanouts:
        """Fan-outs of evaluation: those that were given, else by the number of edges. The same on all ranks."""
        if self.eval_num_neighbors is not None:
            return self.eval_num_neighbors
        fanouts, why = eval_fanouts(self.num_neighbors, sum(self._opened().manifest.num_edges))
        rank_zero_info(f"eval_num_neighbors: {fanouts}, {why}. Set data.eval_num_neighbors to choose it.")
        return fanouts

    def _has_seeds(self, split: str) -> bool:
        if split in self.splits:
            seeds = read_split(split, self.splits[split])
            return bool(seeds.any() if seeds.dtype == np.bool_ else len(seeds))
        stored = self._opened().manifest.splits.get(split)
        return stored is not None and stored.count > 0

    def _split_names(self) -> set[str]:
        return {*self._opened().manifest.splits, *self.splits}

    def _node_type(self) -> str | None:
        manifest = self._opened().manifest
        return None if manifest.schema.homogeneous else self.input_type or manifest.target_type

    def _host(self) -> GraphHost:
        """Who opens the graph and makes loaders: the strategy if it is ours, else this object."""
        return self._standalone.under(self._running_trainer())

    def _running_trainer(self) -> Trainer | None:
        """None after a Trainer's run: its strategy is closed, and who calls `setup` by hand (a notebook) samples alone."""
        ended = (TrainerStatus.FINISHED, TrainerStatus.INTERRUPTED)
        return None if self.trainer is None or self.trainer.state.status in ended else self.trainer

    def _open_host(self) -> GraphHost:
        """The same, sampling the graph."""
        graph, host = self._opened(), self._host()
        assert self._seed is not None
        if not host.has_context:
            host.open_context(graph, self.sampling, self._seed, self.cache)
        return host

    def _opened(self) -> LocalPartition | SampledGraph:
        if self._graph is None:
            raise OptionError("the graph is not open: call prepare_data() and setup() before asking for a loader.")
        return self._graph

    def _close(self) -> None:
        self._loaders.clear()
        self._train_labels = None
        self._standalone.close()
        self._in_flight.clear()


def _fresh_seed() -> int:
    """Lightning's global seed, else a new one."""
    given = os.environ.get("PL_GLOBAL_SEED")
    return int(given) if given is not None else secrets.randbits(62)
