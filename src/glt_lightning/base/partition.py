"""Options of the partition: who assigns nodes to parts, and how rows are ranked and stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, ClassVar, Literal

from glt_lightning.base.checks import Fanouts, at_least, one_of, parse_fanouts
from glt_lightning.base.errors import OptionError

Normalize = Literal["none", "rows", "standardize"]
Hotness = Literal["auto", "vip", "degree", "presample"]
Engine = Literal["processes", "array", "dask", "ray", "spark"]
ENGINES = ("processes", "array", "dask", "ray", "spark")
ALGORITHMS = ("random", "frequency", "metis", "streaming")
HOTNESS = ("auto", "vip", "degree", "presample")
BALANCE = ("nodes", "seeds", "edges")
STORAGE = ("float16", "bfloat16", "int8")
# What earlier releases assumed whatever the data module had; their folders are named by it.
_NUM_NEIGHBORS, _BATCH_SIZE = [15, 10, 5], 1024
_BALANCE = ["nodes", "seeds"]


@dataclass(frozen=True, kw_only=True)
class PartitionOptions:
    """How a graph is cut into parts.

    Attributes:
        num_parts: Number of parts.
        algorithm: Who assigns nodes to parts: ``random``, ``frequency``, ``metis`` or ``streaming``; the path of an array
            of part numbers (``.npy``, or ``.npz`` with one array per node type); or the class path of an
            ``Assigner``, alone or with ``{class_path, init_args}``.
        seed: Seed of the assignment.
        version: With rows that were appended to the partition: the number of the version to read, or ``latest``. ``None``: the
            partition itself.
        dir: Folder of the partition. ``None`` derives one below ``root`` from the data set and these options, so that
            other options make another folder.
        memory_bytes: Working memory of the partitioner beyond a few arrays of one entry per node: of all its processes on one
            host together; with other engines, of each worker. METIS takes more.
        engine: Who runs the work: ``processes`` of this host; a cluster of ``dask``, ``ray`` or ``spark``; or ``array``: the
            same command in each process of a SLURM array, an Indexed Job or MPI. The folder is the same, byte for byte.
        address: Of the cluster of ``dask``, ``ray`` or ``spark``. ``local``: one on this host, for the time being. ``None``:
            the one that the engine finds by itself.
        processes: Number of processes or workers. ``None``: of ``processes``, one for each usable core, and fewer for a small
            graph; of other engines, as many as there are.
        balance: What ``metis`` and ``streaming`` spread evenly over the parts: ``nodes`` of each type, ``seeds`` of each
            split, ``edges`` by destination.
        node_weight: Node attribute of integers >= 0 by which ``nodes`` is balanced. ``None``: each node counts 1.
        hotness: How rows are ranked: ``vip`` by the probability to be in a batch of the part's own training seeds,
            ``presample`` by counting sampled batches, ``degree`` by edges. ``auto``: ``degree`` for ``random``, else
            ``vip``. Without training seeds it is always ``degree``.
        num_neighbors: Fan-outs that ``vip``, ``presample`` and ``frequency`` assume. ``None``: as ``data.num_neighbors``; a
            partition that exists keeps its own.
        batch_size: Batch size that they assume. ``None``: as ``data.batch_size``; a partition that exists keeps its own.
        storage: Floating-point attributes of nodes and edges to store, cache and send in fewer bytes, ``{x: float16}``:
            ``float16``, ``bfloat16``, or ``int8`` with a scale per row. Batches have them as float32. Of one type alone:
            ``{paper: {x: float16}, author__writes__paper: {edge_attr: int8}}``, which comes before what is said of all types.
        weights: Edge attributes by which edges may be sampled: numbers >= 0, one for each edge, or boolean masks. Their prefix
            sums are stored, 4 bytes an edge; an edge of weight 0 is never sampled. Those of ``sampling.weight_attr`` are
            added to them.
        time_attr: Attribute of nodes or of edges with times, integers (columns of dates in tables become microseconds since
            1970): neighbours can then be drawn from those up to a seed's time alone. An edge has its own time, or that of its
            source. Rows are stored in the order of time, and times of edges with them, 8 bytes an edge. None: as
            ``sampling.time_attr``.
        device: ``cpu``, or a CUDA device (``cuda``, ``cuda:1``) that computes ``vip`` and ``frequency``: the same numbers,
            sooner.
        allow: Doubtful data to accept; else it is an error. ``nonfinite_labels``: NaN or infinite values in ``y``, where NaN
            marks an unknown label; ``nonfinite_features``: the same in other attributes; ``overlapping_splits``: training
            nodes that are also in ``val`` or ``test``; ``unlabelled_seeds``: training nodes without a label;
            ``sparse_labels``: more than ten times as many classes as labels that occur.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> PartitionOptions(num_parts=2, algorithm="metis", storage={"x": "float16"}).num_parts
        2
        >>> PartitionOptions(num_parts=0)
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: partition.num_parts: ...
    """

    ALLOWED: ClassVar = (
        "nonfinite_features",
        "nonfinite_labels",
        "overlapping_splits",
        "sparse_labels",
        "unlabelled_seeds",
    )

    imbalance: ClassVar[float] = 0.05  # how far a part may exceed its even share
    passes: ClassVar[int] = 3  # over the edges: to group nodes (streaming), and to refine parts (streaming, metis)

    num_parts: int = 1
    algorithm: str | dict[str, Any] = "random"
    seed: int = 0
    version: int | str | None = None
    dir: str | None = None
    memory_bytes: int = 2 << 30
    engine: Engine = "processes"
    address: str | None = None
    processes: int | None = None
    balance: list[str] = field(default_factory=lambda: list(_BALANCE))
    node_weight: str | None = None
    hotness: Hotness = "auto"
    num_neighbors: Fanouts | None = None
    batch_size: int | None = None
    storage: dict[str, str | dict[str, str]] = field(default_factory=dict)
    weights: list[str] = field(default_factory=list)
    time_attr: str | None = None
    device: str = "cpu"
    allow: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        at_least("partition.num_parts", self.num_parts, 1)
        at_least("partition.seed", self.seed, 0)
        at_least("partition.memory_bytes", self.memory_bytes, 1 << 20)
        one_of("partition.engine", self.engine, ENGINES)
        if self.address is not None and self.engine not in ENGINES[2:]:
            raise OptionError(f"partition.address: belongs to {', '.join(ENGINES[2:])}, not to {self.engine}. Drop it.")
        if self.processes is not None:
            at_least("partition.processes", self.processes, 1)
        self._check_algorithm()
        for name in self.balance:
            one_of("partition.balance", name, BALANCE)
        one_of("partition.hotness", self.hotness, HOTNESS)
        self._check_storage()
        weights: Any = self.weights
        if isinstance(weights, str) or not all(isinstance(name, str) and name for name in weights):
            raise OptionError(
                f"partition.weights: expected a list of edge attributes such as [edge_weight], got {weights!r}."
            )
        if self.time_attr is not None and (not isinstance(self.time_attr, str) or not self.time_attr):
            raise OptionError(
                f"partition.time_attr: expected the name of an attribute of nodes or edges, got {self.time_attr!r}."
            )
        allow: Any = self.allow
        for name in [allow] if isinstance(allow, str) else allow:
            one_of("partition.allow", name, self.ALLOWED)
        if re.fullmatch(r"cpu|cuda(:\d+)?", str(self.device)) is None:
            raise OptionError(f"partition.device: expected cpu, cuda or cuda:0 and so on, got {self.device!r}.")
        at_least("partition.batch_size", self.assumed_batch_size, 1)
        fanouts = self.assumed_num_neighbors
        for key, given in fanouts.items() if isinstance(fanouts, dict) else [(None, fanouts)]:
            parse_fanouts(given, "partition.num_neighbors" if key is None else f"partition.num_neighbors[{key}]")

    def _check_storage(self) -> None:
        if not isinstance(self.storage, dict):
            raise OptionError(f"partition.storage: expected a mapping such as {{x: float16}}, got {self.storage!r}.")
        for name, kind in self.storage.items():
            of_type = kind if isinstance(kind, dict) else {}
            if kind == {}:
                raise OptionError(f"partition.storage.{name}: expected attributes such as {{x: float16}}, got {{}}.")
            for attribute, own in of_type.items():
                one_of(f"partition.storage.{name}.{attribute}", own, STORAGE)
            if not of_type:
                one_of(f"partition.storage.{name}", kind, STORAGE)

    def _check_algorithm(self) -> None:
        given = self.algorithm
        if isinstance(given, dict):
            if not isinstance(given.get("class_path"), str) or set(given) - {"class_path", "init_args"}:
                raise OptionError(f"partition.algorithm: expected class_path and init_args, got {given!r}.")
        elif not isinstance(given, str) or (given not in ALGORITHMS and "." not in given):
            one_of(
                "partition.algorithm", given, ALGORITHMS, "a path (parts.npy) or a class path (my_module.MyPartitioner)"
            )

    @property
    def assumed_num_neighbors(self) -> Fanouts:
        """Fan-outs of the batches for which rows are ranked."""
        return list(_NUM_NEIGHBORS) if self.num_neighbors is None else self.num_neighbors

    @property
    def assumed_batch_size(self) -> int:
        """Size of the batches for which rows are ranked."""
        return _BATCH_SIZE if self.batch_size is None else self.batch_size

    @property
    def depends_on_batches(self) -> bool:
        """Whether fan-outs and batch size change what is stored: the order of rows, or the assignment to parts."""
        by_degree = self.hotness == "degree" or (self.hotness == "auto" and self.algorithm == "random")
        return not by_degree or self.algorithm == "frequency"

    def assuming(self, num_neighbors: Fanouts | None, batch_size: int | None) -> PartitionOptions:
        """With these where none are given."""
        return replace(
            self,
            num_neighbors=num_neighbors if self.num_neighbors is None else self.num_neighbors,
            batch_size=batch_size if self.batch_size is None else self.batch_size,
        )

    def serving(self, weight_attr: str | Mapping[str, str] | None, time_attr: str | None) -> PartitionOptions:
        """With the weights and times that ``sampling`` draws by, where none are given."""
        attrs = {weight_attr} if isinstance(weight_attr, str) else {*(weight_attr or {}).values()}
        return replace(
            self,
            weights=[*self.weights, *sorted(attrs - {*self.weights})],
            time_attr=time_attr if self.time_attr is None else self.time_attr,
        )

    @property
    def algorithm_name(self) -> str:
        """Short name of the algorithm, fit for a folder."""
        given = self.algorithm["class_path"] if isinstance(self.algorithm, dict) else self.algorithm
        if given in ALGORITHMS:
            return given
        return PurePath(given).stem if given.endswith((".npy", ".npz")) else given.rpartition(".")[2]
