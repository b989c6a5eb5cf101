"""`GLTDataModule`: which graph, which seeds, how many neighbours."""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch_geometric.data import Data, HeteroData

from glt_lightning.base import (
    BatchOptions,
    CacheOptions,
    ClusterOptions,
    DataError,
    EvaluationOptions,
    Fanouts,
    LinkOptions,
    Normalize,
    OptionError,
    PartitionOptions,
    SamplingOptions,
    SeedOptions,
    Task,
    as_options,
)
from glt_lightning.graph import GrownPartition, LocalPartition
from glt_lightning.lightning.batch_checks import check_batches
from glt_lightning.lightning.callbacks.added import add_callbacks, save_with_checkpoints
from glt_lightning.lightning.facts import require_taken, warn_of_hops, warn_of_one_class
from glt_lightning.lightning.link_seeds import BALANCED, LinkSeeds, weights_of
from glt_lightning.lightning.seed_data_module import SeedDataModule
from glt_lightning.lightning.strategies.dry_run import give_shapes_early
from glt_lightning.lightning.strategies.ranks import check_ranks
from glt_lightning.lightning.strategies.session_host import SessionHost, Standalone
from glt_lightning.loader import BatchTransform, DistNeighborLoader, LinkSpec, LoaderSpec, Session
from glt_lightning.tensors import DistGraph
from glt_lightning.workers import SampledGraph

_NUM_NEIGHBORS: Fanouts = [15, 10, 5]
_PARTITION = PartitionOptions()
_SAMPLING, _CACHE = SamplingOptions(), CacheOptions()
_SEEDS, _LINKS, _BATCHES, _EVALUATION = SeedOptions(), LinkOptions(), BatchOptions(), EvaluationOptions()
_COMPILE = (
    "torch.compile of a whole LightningModule traces Lightning, too, such as self.log(), and torch cannot follow all of it. "
    "Compile the network inside the module instead: self.gnn = torch.compile(self.gnn)."
)
_UNLIKE_DTYPES = "same dtype, but got"  # torch, of a product of matrices
_DTYPE = (
    "Features and other attributes have the dtype of the data in batches, such as float16, and with sampling.feature_dtype: "
    "stored that of partition.storage. Convert them in the module: batch.x.float()."
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
            What changes every batch is ``batches.transform``.
        normalize: ``rows`` makes each row of ``x`` sum to 1, as PyG does; ``standardize`` gives each column mean 0 and
            deviation 1.
        num_neighbors: Fan-outs, first hop first, -1 for all neighbours; or a list per edge type, ``{src__rel__dst: [...]}``.
        batch_size: Seeds per batch and rank.
        partition: How the graph is cut into parts.
        sampling: How batches are made.
        cache: Budgets of the caches: remote rows, rows of the partition's files in memory, rows on the GPU that trains.
        task: ``node``: seeds are nodes. ``link``: seeds are edges, to be told from pairs of nodes without an edge. ``edge``:
            seeds are edges, whose labels are predicted.
        seeds: Own splits, their node types, times and weights.
        links: With ``task: link`` or ``edge``, the edges to predict.
        batches: Which edges batches have, and in what form.
        evaluation: How validation, test and prediction differ from training.
        new: For ``predict``: rows that came after the graph was partitioned, and that alone are predicted. The path of a YAML
            file, or its content: ``nodes`` and ``edges`` with the path of each table that has new rows, and ``embeddings``,
            ``mean``, ``zero`` or ``error``: how new nodes are computed where the model learned an embedding for each.
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
        dataset: str | dict[str, str | Any] | Any = None,
        root: str = "data",
        undirected: bool | None = None,
        normalize: Normalize = "none",
        num_neighbors: Fanouts = _NUM_NEIGHBORS,
        batch_size: int = 1024,
        partition: PartitionOptions = _PARTITION,
        sampling: SamplingOptions = _SAMPLING,
        cache: CacheOptions = _CACHE,
        transforms: list[str | dict[str, Any]] | None = None,
        task: Task = "node",
        seeds: SeedOptions = _SEEDS,
        links: LinkOptions = _LINKS,
        batches: BatchOptions = _BATCHES,
        evaluation: EvaluationOptions = _EVALUATION,
        new: str | dict[str, Any] | Any = None,
        cluster: ClusterOptions | None = None,
    ) -> None:
        seeds = as_options(SeedOptions, "seeds", seeds)
        partition = as_options(PartitionOptions, "partition", partition)
        self.sampling = as_options(SamplingOptions, "sampling", sampling)
        if dataset is not None:
            partition = partition.serving(self.sampling.weight_attr, self.sampling.time_attr)
        self.batches = as_options(BatchOptions, "batches", batches)
        self.evaluation = as_options(EvaluationOptions, "evaluation", evaluation)
        super().__init__(
            dataset,
            root,
            undirected=undirected,
            normalize=normalize,
            transforms=transforms,
            seeds=seeds,
            partition=partition,
            num_neighbors=num_neighbors,
            batch_size=batch_size,
            cluster=cluster,
            links=LinkSeeds.of(task, as_options(LinkOptions, "links", links), seeds, self.evaluation, self.batches),
        )
        _show_log()
        self.cache = as_options(CacheOptions, "cache", cache)
        self.transform = BatchTransform.of("batches.transform", self.batches.transform)
        self._added_features = 0 if self.transform is None else self.transform.added_features
        self._check_options()
        self._seed: int | None = self.sampling.seed
        self._loaders: dict[str, DistNeighborLoader] = {}
        self._train_labels: np.ndarray | None = None
        self._standalone = Standalone(self.cluster)
        self.new = None
        if new is not None:
            from glt_lightning.lightning.new_rows import NewRows

            self.new = NewRows(new)

    def _check_options(self) -> None:
        check_batches(self)
        self._check_graph()
        self._check_times()
        if self.links is not None:
            self.links.require_own_weights(self.sampling.weight_attr)

    # Lightning's hooks

    def prepare_data(self) -> None:
        """Partitions the graph if that is not done yet. Lightning calls it in one process per host."""
        try:
            self._prepare()
        except Exception as error:
            if not self._host().postpone(error):
                raise

    def _prepare(self) -> None:
        if self.trainer is not None:
            check_ranks(self.trainer.world_size)
        if self.dataset is None or self._servers:
            return
        self._check_before_partitioning(None if self.trainer is None else self.trainer.state.fn)
        self._partition_graph()

    def setup(self, stage: str | None = None) -> None:
        """Opens the graph. Who samples it starts with the first loader."""
        host = self._host()
        host.require_prepared()
        self._require_predicting(stage)
        new = self.new if stage == "predict" else None
        folder, version = None if self._servers else self.partition_dir, self.partition.version
        self._graph = host.open_graph(folder, self.sampling, self.cache, version if new is None else None)
        self._require_made_as_asked()
        self._read_version(new)
        if self.new is not None and stage == "predict" and self.trainer is not None:
            from glt_lightning.lightning.new_rows import extend_embeddings

            extend_embeddings(self.trainer.lightning_module, self.new.embeddings)
        if self.trainer is not None:
            self._require_split(stage, self._split_names())
            require_taken(self.sampling.aggregate_first, self.trainer.lightning_module)
        self._seed = host.share_seed(self._seed if self._seed is not None else _fresh_seed())
        if self.trainer is not None:
            add_callbacks(self.trainer, self)
        if stage == "fit" and self.trainer is not None:
            give_shapes_early(self.trainer)
            warn_of_one_class(self.label_facts if self.links is None or self.links.labelled else None)
            # other subgraphs have edges between any two hops, and ShaDow's models are deeper than they have hops
            if self.batches.subgraph_type == "directional":
                warn_of_hops("num_neighbors", self.num_neighbors, self.trainer.lightning_module)
                evaluated = self.evaluation.num_neighbors
                warn_of_hops("evaluation.num_neighbors", evaluated, self.trainer.lightning_module)

    def _require_predicting(self, stage: str | None) -> None:
        """Raises `OptionError` for new rows in a stage that does not predict them."""
        if self.new is None:
            return
        if stage not in (None, "predict"):
            name = getattr(stage, "value", stage)
            raise OptionError(f"data.new: these rows are predicted, and {name} has no use for them. Remove it.")
        if self.links is not None:
            raise OptionError("data.new: with task: link, seeds are edges; new rows are predicted with task: node.")

    def __getstate__(self) -> dict[str, Any]:
        """The state for a pickle and for a copy, as before `setup`: what is open, and the Trainer of its run, stay with this
        process. A Trainer that starts processes gives itself to them, before anything is open."""
        trainer = self._running_trainer() if self._host().session is None else None
        own: dict[str, Any] = {
            "_trainer": trainer,
            "_graph": None,
            "_appended": None,
            "_loaders": {},
            "_train_labels": None,
        }
        return self.__dict__ | own | {"_standalone": Standalone(self.cluster)}

    def renew(self, new: Any) -> None:  # no name of a class: jsonargparse imports what is annotated here
        """Gives this copy of a data module, which has nothing open, new rows to predict, `NewRows`."""
        self.new, self._trainer = new, None

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
            if self.new is not None:
                raise OptionError("data.new: new rows are predicted by sampling: use predict, not embed.")
            return own(self)
        return self._make_loader("predict", None if (split := self._predict_split) == "all" else split)

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
        elif isinstance(exception, RuntimeError) and _UNLIKE_DTYPES in str(exception):
            exception.add_note(_DTYPE)
        self._close()

    def state_dict(self) -> dict[str, Any]:
        return {"sampling_seed": self._seed, "graph_version": self._version_read}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Lightning calls this after setup() and before it asks for loaders.
        if self.trainer is not None and self.trainer.state.fn == TrainerFn.FITTING:
            self._require_version(state_dict.get("graph_version"))
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
        if name == "train" and self.seeds.weights is not None:
            weights = (
                weights_of(BALANCED, self.train_labels())
                if isinstance(spec, LinkSpec)
                else self._seed_weights(session, spec)
            )
            spec = replace(spec, seed_weights=weights)
        loader = session.make_loader(spec)
        if not len(loader.plan.seeds):
            raise DataError(
                f"loader {name!r}: no seeds, so there is nothing to evaluate. Give some as data.seeds.splits."
            )
        self._loaders[name] = loader
        return loader

    def make_loader(self, spec: Any) -> DistNeighborLoader:
        """A loader of one's own over the graph, as `Session.make_loader`, from `setup` to `teardown`. All ranks make it."""
        return self._session().make_loader(spec)

    def _seed_weights(self, session: Session, spec: LoaderSpec) -> np.ndarray:
        assert self.seeds.weights is not None
        if self.seeds.weights == BALANCED:
            return weights_of(BALANCED, self.train_labels())
        try:
            return weights_of(self.seeds.weights, session.read_seeds(spec, self.seeds.weights))
        except DataError as error:
            raise DataError(f"seeds.weights: {error}") from None

    def train_labels(self) -> np.ndarray:
        """Labels [S] or [S, D] of the training seeds, in the user's order; the same on every rank, whoever has the graph.
        A collective call before the first loader is made."""
        if self.links is not None and self.links.labelled:
            graph = self._opened()
            labels = graph.edge_split(graph.schema.edge_index(self.links.edge_type(graph.schema)), "train").label
            assert labels is not None
            return labels
        if self._train_labels is None:
            self._train_labels = self._session().read_seeds(self._node_spec("train", "train"), "y")
        return self._train_labels

    @property
    def opened_graph(self) -> LocalPartition | SampledGraph:
        """The graph, with the rows of its version: from `setup` to `teardown`."""
        return self._opened()

    @property
    def session(self) -> Session:
        """Makes the loaders of this rank, from `setup` to `teardown`. The first access is a collective call."""
        return self._session()

    @property
    def sampling_seed(self) -> int:
        """The seed of all draws, from `setup` on."""
        assert self._seed is not None
        return self._seed

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
        if isinstance(self._graph, GrownPartition):  # its memory belongs to nobody else
            self._graph.close()


def _fresh_seed() -> int:
    """Lightning's global seed, else a new one."""
    given = os.environ.get("PL_GLOBAL_SEED")
    return int(given) if given is not None else secrets.randbits(62)


def _show_log() -> None:
    """Prints the lines of the package on stderr, unless the user has set up logging. Safe to call twice."""
    log = logging.getLogger("glt_lightning")
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())
