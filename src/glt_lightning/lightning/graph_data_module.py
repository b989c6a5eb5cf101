"""Which graph: from data or servers, partitioned or not yet, and what a model is built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from glt_lightning.base import (
    ClusterOptions,
    Fanouts,
    Normalize,
    OptionError,
    PartitionError,
    PartitionOptions,
    SeedOptions,
    as_options,
    counted,
    edge_type_str,
)
from glt_lightning.graph import IN_TRAINING, MANIFEST, GrownPartition, LocalPartition, Manifest
from glt_lightning.lightning.link_seeds import LinkSeeds
from glt_lightning.lightning.strategies.base import GLTStrategy
from glt_lightning.lightning.strategies.hosts import ask_manifest
from glt_lightning.partition import (
    Appended,
    GraphFacts,
    GraphSource,
    Versions,
    data_name,
    follow_batches,
    open_source,
    partition_dir,
    partition_graph,
)
from glt_lightning.workers import SampledGraph, placed_parts

if TYPE_CHECKING:
    from glt_lightning.lightning.new_rows import NewRows

_NO_GRAPH = (
    "dataset: not given. Name one (demo, graph.npz, ogbn-products), a finished partition.dir, or cluster.servers."
)


class GraphDataModule(LightningDataModule):
    """Knows its graph: where it comes from, its facts, its partition. `GLTDataModule` adds which seeds are drawn.

    Args: as those of `GLTDataModule`; links: the edges to predict.
    """

    def __init__(
        self,
        dataset: Any,
        root: str,
        *,
        undirected: bool | None,
        normalize: Normalize,
        transforms: list[str | dict[str, Any]] | None,
        seeds: SeedOptions,
        partition: PartitionOptions,
        num_neighbors: Fanouts,
        batch_size: int,
        cluster: ClusterOptions | None,
        links: LinkSeeds | None,
    ) -> None:
        super().__init__()
        self.links = links  # None: seeds are nodes
        self.dataset, self.root, self.transforms = dataset, root, transforms or []
        self.undirected, self.normalize, self.seeds = undirected, normalize, seeds
        self.partition = as_options(PartitionOptions, "partition", partition)
        if links is not None and links.val_edges_at_test:
            self.partition = replace(self.partition, weights=[*self.partition.weights, IN_TRAINING])
        self.num_neighbors, self.batch_size = num_neighbors, batch_size
        self.cluster = None if cluster is None else as_options(ClusterOptions, "cluster", cluster)
        self._graph: LocalPartition | SampledGraph | None = None

    def _check_graph(self) -> None:
        """Raises `OptionError` unless the options name a graph."""
        if self.dataset is None and self.partition.dir is None and not self._servers:
            raise OptionError(_NO_GRAPH)
        if not isinstance(self.transforms, (list, tuple)):
            raise OptionError(
                f"transforms: expected a list of class paths, got {self.transforms!r:.200}. They change the graph before it is "
                "partitioned; what changes every batch is batches.transform."
            )
        if self.normalize not in ("none", "rows", "standardize"):
            raise OptionError(f"normalize: expected none, rows or standardize; got {self.normalize!r}.")

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

    def _running_trainer(self) -> Trainer | None:
        """None after a Trainer's run: its strategy is closed, and who calls `setup` by hand (a notebook) samples alone."""
        ended = (TrainerStatus.FINISHED, TrainerStatus.INTERRUPTED)
        return None if self.trainer is None or self.trainer.state.status in ended else self.trainer

    # What a model is built from. Answered by a server or from the partition if there is one, else from a look at the
    # data set.

    @property
    def num_features(self) -> int | dict[str, int | None] | None:
        """Width of ``x``, with the columns that ``batches.transform`` adds; per node type in a heterogeneous graph."""
        found = self._per_type(self._facts.num_features)
        return found if isinstance(found, dict) or not self._added_features else (found or 0) + self._added_features

    _added_features = 0  # by every batch's transform

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
    def label_facts(self) -> dict[str, Any] | None:
        """What the labels are: kind, width, number and names of classes; None if there are none. With ``task: edge`` those of the
        edges to predict."""
        if self.links is not None and self.links.labelled:
            return self._edge_labels
        labels = self._facts.labels
        if labels is None or labels["class_names"] is not None or self.dataset is None or self._servers:
            return labels
        names = getattr(self.source, "class_names", None)  # a partition of an earlier release has no names
        return {**labels, "class_names": None if names is None else list(map(str, names))}

    @property
    def _edge_labels(self) -> dict[str, Any] | None:
        assert self.links is not None
        return self._facts.edge_labels.get(self.links.edge_type(self._facts.schema))

    @property
    def num_relations(self) -> int | None:
        """Number of kinds of the edges to predict, with ``links.relation``; None where edge types are the relations."""
        if self.links is None or self.links.relation is None or self._edge_labels is None:
            return None
        found: int = self._edge_labels["num_classes"]
        return found

    @property
    def relation_names(self) -> list[str] | None:
        """Names of the relations 0, 1, ... of ``links.relation``; None where the data names none."""
        names = None if self.num_relations is None or self._edge_labels is None else self._edge_labels["class_names"]
        return None if names is None else list(names)

    @property
    def target_facts(self) -> dict[str, Any] | None:
        """With ``task: edge`` and ``links.with_target_attrs``, what edges to predict have that a decoder reads, as in
        ``edge_facts``; None where it reads nothing."""
        if self.links is None or not self.links.labelled or not self.links.with_target_attrs:
            return None
        found = self._facts.edges.get(self.links.edge_type(self._facts.schema))
        return None if found is None else {**found, "weight": False}

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes 0, 1, ...; None where the data names none."""
        labels = self.label_facts
        # without labels: nodes to predict, with the classes of an encoding that is applied
        if labels is None and self._graph is not None:
            names = self._graph.manifest.class_names
            return None if names is None else list(names)
        return None if labels is None else labels["class_names"]

    @property
    def target_type(self) -> str | list[str] | None:
        """Node type of the seeds in a heterogeneous graph, or several."""
        facts = self._facts
        given = None if self.links is not None else self.seeds.input_type
        return None if facts.schema.homogeneous else given or facts.target_type

    @property
    def link_type(self) -> str | list[str] | None:
        """The edge type that ``task: link`` or ``edge`` predicts, as ``src__rel__dst``, or several; None if seeds are nodes."""
        if self.links is None:
            return None
        names = [edge_type_str(each) for each in self.links.edge_types(self._facts.schema)]
        return names[0] if len(names) == 1 else names

    @property
    def partition_dir(self) -> Path:
        """Folder of the partition, whether it exists or not."""
        if self.dataset is None:
            if self.partition.dir is None:
                raise OptionError(_NO_GRAPH)
            return Path(str(self.partition.dir))
        return partition_dir(self.root, self.source, self.partition, self.undirected, self.normalize)

    @property
    def is_partitioned(self) -> bool:
        """True if there is a partition in its folder."""
        return (self.partition_dir / MANIFEST).is_file()

    @cached_property
    def source(self) -> GraphSource:
        """The data set, without the edges that are held out."""
        source = open_source(self.dataset, self.root, self.transforms, self.partition.seed, self.partition)
        return source if self.links is None else self.links.hold_out(source, self.partition.allow, self.root)

    @property
    def _servers(self) -> list[str]:
        """Who has the graph, if not this host."""
        trainer = self._running_trainer()
        strategy = None if trainer is None else trainer.strategy
        if isinstance(strategy, GLTStrategy):
            return strategy.servers
        return [] if self.cluster is None or strategy is not None else self.cluster.servers

    @property
    def _known_manifest(self) -> Manifest | None:
        """The manifest of the partition; None where it is still to be made."""
        if self._graph is not None:
            # a model is built for the nodes that it was trained on, not for those that came later
            grown = isinstance(self._graph, GrownPartition) and self._graph.manifest.of_version == 0
            return self._manifest_at_version() if grown else self._graph.manifest
        if self._servers:
            return ask_manifest(self._cluster)
        return self._manifest_at_version() if self.is_partitioned else None

    @cached_property
    def _facts(self) -> GraphFacts:
        if (manifest := self._known_manifest) is not None:
            return GraphFacts.of_manifest(manifest)
        if self.dataset is None:
            raise PartitionError(
                f"{self.partition_dir}: no finished partition is there, and no dataset is given to make it."
            )
        return GraphFacts.of_source(self.source, bool(self.undirected), self.partition.allow)

    def _manifest_at_version(self) -> Manifest:
        return Versions(self.partition_dir).manifest_at(Manifest.load(self.partition_dir), self.partition.version)

    def _require_made_as_asked(self) -> None:
        """Raises `OptionError` for an option of the graph that the open partition was not made with: servers have it, or it was
        named without the data. One made of the data of this run is compared before."""
        assert self._graph is not None
        made = self._graph.manifest.made_by
        asked = {"undirected": self.undirected, "normalize": None if self.normalize == "none" else self.normalize}
        for name, value in asked.items():
            if value is not None and made.get(name, value) != value:
                whose = "the graph servers' partition" if self._servers else f"{self.partition_dir}"
                raise OptionError(
                    f"{name}: {value}, and {whose} was made with {made[name]}. Remove {name}, or partition the data with it."
                )
        if self._servers and self.dataset is not None and "source" in made:
            given = data_name(self.dataset, self.root)
            if given is not None and given.lower() != made["source"].lower():
                raise OptionError(
                    f"dataset: the data set {given}, and the graph servers' partition was made of {made['source']}. Remove "
                    "dataset, or change cluster.servers to those of this data set."
                )

    def _read_version(self, new: NewRows | None) -> None:
        """Adds rows to predict to the open graph. Raises `OptionError` for a version that graph servers do not have."""
        graph, version, self._appended = self._graph, self.partition.version, None
        here = version is None and isinstance(graph, LocalPartition)
        if here and (latest := Versions(self.partition_dir).number("latest")):
            rank_zero_info(
                f"{self.partition_dir}: {counted(latest, 'version')} after it, and this run reads the partition itself. "
                "partition.version: latest reads the rows that were appended."
            )
        if new is not None:
            if not isinstance(graph, LocalPartition) or len(graph.parts) < graph.manifest.num_parts:
                raise OptionError(
                    "data.new: rows are added to a graph that this process maps whole. Use the strategy auto, or glt_worker on "
                    "one host."
                )
            self._appended = Versions(graph.directory).read(graph.manifest, version)
            self._graph = new.added_to(graph, self.dataset, self.root, self._appended)
            return
        assert graph is not None
        opened = graph.manifest.of_version or 0
        if version not in (None, "latest", opened):
            raise OptionError(
                f"partition.version: {version}, and the graph servers read version {opened}. Write {opened}, or start them with "
                f"--data.partition.version {version}."
            )

    _appended: Appended | None = None

    @property
    def later_rows(self) -> Appended | None:
        """The rows of the version of the open graph, of which tables have ids; None where its folder is not here."""
        graph = self._opened()
        version, known = graph.manifest.of_version, self.dataset is not None or self.partition.dir is not None
        if self._appended is None and known and (version or isinstance(graph, LocalPartition)) and self.is_partitioned:
            self._appended = Versions(self.partition_dir).read(Manifest.load(self.partition_dir), version)
        return self._appended

    @property
    def _version_read(self) -> dict[str, Any] | None:
        """What a checkpoint says of the version of the graph; None before the graph is open."""
        if self._graph is None:
            return None
        graph, made = self._graph, self._graph.manifest.made_by
        partition = graph if isinstance(graph, LocalPartition) else getattr(graph, "partition", None)
        return {
            "folder": "the servers' folder" if partition is None else partition.directory.name,
            "version": graph.manifest.of_version or 0,
            "rows": made.get("overlay"),
            "data": made.get("fingerprint"),
        }

    def _require_version(self, theirs: Mapping[str, Any] | None) -> None:
        """Raises `OptionError`, with the option to write, if training would go on with other rows of the same graph. theirs:
        `_version_read` of the checkpoint."""
        mine = self._version_read
        if not theirs or not mine or theirs.get("data") != mine["data"] or theirs["rows"] == mine["rows"]:
            return  # another graph is found by the loader's state
        number, folder = theirs["version"], theirs["folder"]
        assert self._graph is not None
        of = self._graph.manifest.made_by.get("compacted", {})
        if of.get("forget") and (folder != mine["folder"] or theirs["rows"] in of["forgot"]):
            raise OptionError(
                f"data.partition.dir: the checkpoint is of version {number} of {folder}, of which {mine['folder']} has "
                "forgotten deleted rows. Training does not go on with it: train anew. predict and deploy read the checkpoint."
            )
        option = f"Set data.partition.version: {number}" if number else "Leave data.partition.version out"
        if folder != mine["folder"]:
            option = f"Set data.partition.dir to the folder {folder}{f', and data.partition.version: {number}' if number else ''}"
        raise OptionError(
            f"data.partition.version: the checkpoint is of version {number} of {folder}, and this run reads version "
            f"{mine['version']} of {mine['folder']}: between them rows were added or deleted. {option}, or train anew."
        )

    @property
    def _cluster(self) -> ClusterOptions:
        trainer = self._running_trainer()
        strategy = None if trainer is None else trainer.strategy
        return strategy.options if isinstance(strategy, GLTStrategy) else self.cluster or ClusterOptions()

    def _per_type(self, values: Mapping[str, Any]) -> Any:
        return next(iter(values.values())) if self._facts.schema.homogeneous else dict(values)

    # The partition

    @property
    def partition_options(self) -> PartitionOptions:
        """``partition`` with fan-outs and batch size: if not given, those of a partition that exists, else those of training."""
        return follow_batches(self.partition, self.partition_dir, self.fanouts_of_edges, self.batch_size)

    @property
    def fanouts_of_edges(self) -> Fanouts | None:
        """``num_neighbors``, by which rows are ranked; None where they are not of stored edge types."""
        return self.num_neighbors

    def _partition_graph(self) -> None:
        """Makes the partition, or checks one that is there."""
        if not self.is_partitioned:
            self._check_may_partition()
            rank_zero_info(
                f"partitioning {self.source.name} into {counted(self.partition.num_parts, 'part')}: {self.partition_dir}"
            )
        partition_graph(
            self.source,
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

    @property
    def graph_hash(self) -> str | None:
        """Of what the partition was made of and how; None before the graph is open."""
        return None if self._graph is None else self._graph.manifest.options_hash

    def _opened(self) -> LocalPartition | SampledGraph:
        if self._graph is None:
            raise OptionError("the graph is not open: call prepare_data() and setup() before asking for a loader.")
        return self._graph
