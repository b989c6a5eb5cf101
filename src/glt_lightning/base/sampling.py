"""Options of sampling: processes, draws, and where a GPU finds the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from glt_lightning.base.checks import at_least, one_of, parse_bytes
from glt_lightning.base.errors import DataError, OptionError
from glt_lightning.base.neighbors import ImportanceNeighbors, PickerSpec, as_class
from glt_lightning.base.workers import WorkerOptions

SeedPlacement = Literal["global", "owner"]
FeatureDtype = Literal["float32", "stored"]
Aggregate = Literal["mean", "sum"]
WeightAttr = str | dict[str, str] | None
AGGREGATES = ("mean", "sum")
EdgeFormat = Literal["tensor", "edge_index", "edge_index_csr"]
SubgraphType = Literal["directional", "bidirectional", "induced"]
SUBGRAPH_TYPES = ("directional", "bidirectional", "induced")
EDGE_FORMATS = ("tensor", "edge_index", "edge_index_csr")
Method = Literal["neighbor", "labor"]
METHODS = ("neighbor", "labor")
TemporalStrategy = Literal["uniform", "last"]
TEMPORAL_STRATEGIES = ("uniform", "last")
TimeBoundary = Literal["<=", "<"]
Memory = Literal["auto", "cpu", "device", "uva", "hybrid"]
MEMORIES = ("auto", "cpu", "device", "uva", "hybrid")


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(WorkerOptions):
    """How batches are made.

    Attributes:
        num_workers: Sampler processes per rank; 0 samples inside the training process. With graph servers those of each server,
            and 2 for 0.
        prefetch: Batches that the GPU that trains makes ahead, where it samples.
        channel_size: Bytes of batches in flight per rank, as an integer or like ``"2GB"``, beside those that the trainer
            has; never fewer than two batches. A loader begins with two and takes more when their size is known; the log says
            how many. ``auto``: an eighth of the memory that the host, or the control group, has
            available, divided by the ranks of the host. A graph server holds as much for each client, and with ``auto`` an
            eighth for all of them. ``None``: no limit beyond ``num_workers * concurrency`` batches, or
            ``cluster.prefetch`` from a server.
        num_threads: Threads that share the work of one batch.
        method: How neighbours are drawn. ``neighbor``: for each node on its own. ``labor``: LABOR-0; the nodes of a hop choose
            the same neighbours where they share some, so that a batch has fewer nodes; each node on its own draws as ever.
        batch_dependency: So many batches of a rank, one after another, draw neighbours alike: a node that is in several of them
            has the same neighbours in each. More of what a batch needs is then in a cache. 1: each batch draws on its own.
        importance_neighbors: The neighbours of a node are the nodes that random walks from it visit most, ``num_neighbors`` of
            them in each hop, as in PinSAGE (`ImportanceNeighbors`): ``{walks: 50, length: 3, restart: 0.5}``. ``None``: they are
            drawn from its edges.
        replace: Draw neighbours with replacement.
        weight_attr: Edge attribute by which neighbours are drawn, one of ``partition.weights``: for all edge types that have it,
            or by edge type, ``{user__rates__item: rating}``. Edges of other types are drawn uniformly. An edge of weight 0 is
            never drawn, whatever the fan-out. ``None``: all edges weigh the same.
        time_attr: Neighbours are drawn from the edges up to the time of the seed, at every hop: the attribute of times, which is
            that of ``partition.time_attr``. A seed's time is ``input_time`` (of edges, ``time`` of ``edge_splits``). Edge types
            without times are not restricted. Batches are disjoint then. ``None``: edges of any time are drawn.
        temporal_strategy: Which of them: ``uniform``, any; ``last``, the latest.
        time_window: How far back edges are drawn, in the units of ``time_attr``: those from the seed's time minus this on.
            ``None``: all.
        time_boundary: ``<=``: edges of exactly the seed's time are drawn, too. ``<``: earlier ones alone.
        with_edge: Give each batch its ``e_id``. A graph with edge attributes gets ``e_id`` and ``edge_attr`` anyway.
        seed: Seed of all draws and shuffles. ``None``: Lightning's global seed, else one drawn on rank 0. Checkpoints have it.
        seed_placement: ``global`` shuffles all seeds over all ranks; ``owner`` gives rank r the seeds of the parts p with p mod
            ranks = r.
        feature_dtype: ``stored`` gives attributes that ``partition.storage`` keeps as ``float16`` or ``bfloat16`` in that
            dtype: half the bytes in each batch. The ready modules cast them in their first layer, other modules have to.
            ``int8`` is decoded in either case. ``float32`` decodes all.
        aggregate_first: Whoever samples does the aggregation of the model's first layer, too, ``mean`` or ``sum``: batches have
            ``x_neighbors``, the mean or sum of ``x`` over the sampled neighbours of each node, and not the nodes and edges of the
            last hop: about half the bytes. For graphs with one node type and one edge type, sampled by CPUs, and modules that
            take it, such as `GraphSAGE`. ``None``: batches have all rows.
        pin_memory: Page-lock the memory of batches. ``None``: only when training on a GPU.
        keep_memory: A rank that trains on a CPU keeps the memory that it frees until training ends, and uses it for the tensors
            of the next step: less CPU time for a higher peak. ``false`` returns it to the system at once. Needs glibc.
        max_restarts: How often a batch is tried again after the sampler process that made it died or raised, and how often in
            a row a process that makes nothing is replaced. Not a limit for the whole job.
        timeout_s: Longest wait for one batch, in seconds.
        topology: Where a GPU that samples finds the graph: ``device``, in its memory; ``uva``, in page-locked memory of the host;
            ``hybrid``, the hottest rows in its memory within ``topology_bytes``, the other rows on the host. ``cpu``: the CPU
            samples. ``auto``: when training on a GPU with ``num_workers`` 0, ``device`` if the graph fits and
            ``topology_bytes`` is not given, else ``hybrid``; for ``worker_devices`` ``device``, or ``hybrid`` with
            ``topology_bytes``; otherwise ``cpu``.
        features: Where it finds attributes of nodes and edges: the same, ``hybrid`` within ``feature_bytes``. ``cpu``: the CPU
            reads them, and they are copied to the GPU. ``auto``: as for ``topology``; ``cpu`` with ``cache.memory``.
        topology_bytes: Bytes of each GPU that samples, such as ``"2GiB"``, for the neighbour lists that ``topology: hybrid``
            places there, ids and row pointers first. ``None``: half of the free memory.
        feature_bytes: Bytes of each GPU that samples for the attributes that ``features: hybrid`` places there. ``None``: half of
            the memory that the graph leaves free.
        picker: A class of your own that picks the neighbours of nodes in place of these draws: its class path, ``{class_path,
            init_args}``, or in Python an object, a dataclass of plain values. Every process that has rows of the graph imports it
            (`Picker`).
        batch_sampler: A class or function of your own that makes whole batches, in the training process (`BatchSampler`).

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> SamplingOptions(num_workers=2, with_edge=True, seed=1).num_workers
        2
        >>> SamplingOptions(num_workers=-1)
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: sampling.num_workers: ...
    """

    group: ClassVar[str] = "sampling"
    least_workers: ClassVar[int] = 0

    num_workers: int = 0
    prefetch: int = 2
    num_threads: int = 1
    method: Method = "neighbor"
    batch_dependency: int = 1
    importance_neighbors: ImportanceNeighbors | dict[str, Any] | None = None
    replace: bool = False
    weight_attr: WeightAttr = None
    time_attr: str | None = None
    temporal_strategy: TemporalStrategy = "uniform"
    time_window: int | None = None
    time_boundary: TimeBoundary = "<="
    with_edge: bool = False
    seed: int | None = None
    seed_placement: SeedPlacement = "global"
    feature_dtype: FeatureDtype = "float32"
    aggregate_first: Aggregate | None = None
    pin_memory: bool | None = None
    keep_memory: bool = True
    max_restarts: int = 3
    timeout_s: float = 300.0
    topology: Memory = "auto"
    features: Memory = "auto"
    topology_bytes: int | str | None = None
    feature_bytes: int | str | None = None
    picker: str | dict[str, Any] | Any = None
    batch_sampler: str | dict[str, Any] | Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("sampling.topology", self.topology, MEMORIES)
        one_of("sampling.features", self.features, MEMORIES)
        for name in ("topology_bytes", "feature_bytes"):
            if getattr(self, name) is not None:
                parse_bytes(f"sampling.{name}", getattr(self, name))
        if self.worker_devices and not self.num_workers:
            raise OptionError("sampling.worker_devices: needs sampler processes; set sampling.num_workers as well.")
        for name, kind in (("topology", self.topology), ("features", self.features)):
            if self.num_workers and not self.worker_devices and kind not in ("auto", "cpu"):
                raise OptionError(
                    f"sampling.{name}: {kind!r} with num_workers {self.num_workers}: set sampling.worker_devices "
                    "for GPUs of the sampler processes, or num_workers 0 to sample on the GPU that trains."
                )
        self._check_weights()
        self._check_times()
        self._check_method()
        self._check_own()
        self._check_importance()
        if self.aggregate_first is not None:
            one_of("sampling.aggregate_first", self.aggregate_first, AGGREGATES, "null")
            if self.worker_devices or self.topology not in ("auto", "cpu"):
                raise OptionError(
                    f"sampling.aggregate_first: {self.aggregate_first!r} needs CPUs that sample: GPUs give all rows. Remove it, "
                    "or remove sampling.worker_devices and set sampling.topology to cpu."
                )
        if self.topology == "cpu" and self.features not in ("auto", "cpu"):
            raise OptionError(
                f"sampling.features: {self.features!r} has no meaning with topology cpu, where the CPU samples and "
                "reads the attributes. Remove one of them."
            )
        at_least("sampling.num_threads", self.num_threads, 1)
        at_least("sampling.max_restarts", self.max_restarts, 0)
        if self.seed is not None:
            at_least("sampling.seed", self.seed, 0)
        if self.seed_placement not in ("global", "owner"):
            raise OptionError(f"sampling.seed_placement: expected 'global' or 'owner', got {self.seed_placement!r}.")
        one_of("sampling.feature_dtype", self.feature_dtype, ("float32", "stored"))
        if not self.timeout_s > 0:
            raise OptionError(f"sampling.timeout_s: expected seconds > 0, got {self.timeout_s!r}.")

    def _check_weights(self) -> None:
        given: Any = self.weight_attr
        names = [given] if not isinstance(given, dict) else [*given, *given.values()]
        if given is not None and not (names and all(isinstance(name, str) and name for name in names)):
            raise OptionError(
                f"sampling.weight_attr: expected an edge attribute, or one for each edge type such as {{a__to__b: edge_weight}}; "
                f"got {given!r}."
            )

    def _check_method(self) -> None:
        one_of("sampling.method", self.method, METHODS)
        at_least("sampling.batch_dependency", self.batch_dependency, 1)
        if self.method == "labor" and self.replace:
            raise OptionError(
                "sampling.replace: sampling.method labor draws each neighbour at most once. Remove one of them."
            )
        if self.method == "labor" and self.temporal_strategy == "last":
            raise OptionError(
                "sampling.temporal_strategy: 'last' takes the latest edges and draws none, so sampling.method labor has no "
                "effect. Remove one of them."
            )

    def _check_times(self) -> None:
        if self.time_attr is not None and (not isinstance(self.time_attr, str) or not self.time_attr):
            raise OptionError(f"sampling.time_attr: expected the name of an attribute, got {self.time_attr!r}.")
        one_of("sampling.temporal_strategy", self.temporal_strategy, TEMPORAL_STRATEGIES)
        one_of("sampling.time_boundary", self.time_boundary, ("<=", "<"))
        if self.time_window is not None:
            at_least("sampling.time_window", self.time_window, 0)
        given = {
            "temporal_strategy": self.temporal_strategy != "uniform",
            "time_window": self.time_window is not None,
            "time_boundary": self.time_boundary != "<=",
        }
        if self.time_attr is None and any(given.values()):
            name = next(name for name in given if given[name])
            raise OptionError(
                f"sampling.{name}: {getattr(self, name)!r} has no effect without times. Set sampling.time_attr, or remove it."
            )
        if self.replace and self.temporal_strategy == "last":
            raise OptionError(
                "sampling.replace: temporal_strategy 'last' takes the latest edges and draws none, so nothing is drawn with "
                "replacement. Remove sampling.replace, or set temporal_strategy to uniform."
            )
        if self.weight_attr is not None and self.temporal_strategy == "last":
            raise OptionError(
                "sampling.temporal_strategy: 'last' takes the latest edges, whatever their weights. Remove "
                "sampling.weight_attr, or set temporal_strategy to uniform, which draws by weight among the edges up to a time."
            )

    @classmethod
    def of_draw(cls, draw: DrawOptions, **options: Any) -> SamplingOptions:
        """Options with this `draw`, except for weights and times, which depend on the graph."""
        return cls(
            picker=None if draw.picker is None else draw.picker.named,
            replace=draw.replace,
            with_edge=draw.with_edge,
            num_threads=draw.threads,
            temporal_strategy="last" if draw.last else "uniform",
            method="labor" if draw.labor else "neighbor",
            **options,
        )

    def _check_own(self) -> None:
        object.__setattr__(self, "picker", as_class("sampling.picker", self.picker))
        own = [name for name in ("picker", "batch_sampler") if getattr(self, name) is not None]
        if own and (self.worker_devices or self.topology not in ("auto", "cpu")):
            raise OptionError(
                f"sampling.{own[0]}: runs on CPUs, and here GPUs sample. Remove it, or remove sampling.worker_devices and set "
                "sampling.topology to cpu."
            )
        given = {
            "method": self.method != "neighbor",
            "replace": self.replace,
            "weight_attr": self.weight_attr is not None,
            "temporal_strategy": self.temporal_strategy != "uniform",
        }
        for name in given if self.picker is not None else ():
            if given[name]:
                raise OptionError(
                    f"sampling.{name}: {getattr(self, name)!r} has no effect with sampling.picker, which picks the neighbours "
                    "itself (it reads weights as rows.attrs). Remove one of them."
                )
        if self.batch_sampler is not None and self.num_workers:
            raise OptionError(
                f"sampling.batch_sampler: runs in the training process, and num_workers {self.num_workers} leaves sampling to "
                "others. Set sampling.num_workers to 0, or write a sampling.picker, which runs everywhere."
            )

    def _check_importance(self) -> None:
        object.__setattr__(self, "importance_neighbors", ImportanceNeighbors.of(self.importance_neighbors))
        if self.importance_neighbors is None:
            return
        given = {
            "method": self.method != "neighbor",
            "replace": self.replace,
            "with_edge": self.with_edge,
            "time_attr": self.time_attr is not None,
            "aggregate_first": self.aggregate_first is not None,
            "picker": self.picker is not None,
            "batch_sampler": self.batch_sampler is not None,
        }
        if name := next((name for name in given if given[name]), None):
            raise OptionError(
                f"sampling.{name}: {getattr(self, name)!r:.80} has no effect with sampling.importance_neighbors, whose "
                "neighbours walks find, not draws from edges. Remove one of them."
            )

    @property
    def draw(self) -> DrawOptions:
        """How neighbours are drawn; `sampling.drawn_by.drawn_from` says whether batches of a graph have edges."""
        return DrawOptions(
            replace=self.replace,
            with_edge=self.with_edge,
            threads=self.num_threads,
            last=self.temporal_strategy == "last",
            labor=self.method == "labor",
            picker=PickerSpec.of(self.picker),
        )


# How neighbours are drawn: the one value that travels from a loader's options to every op and every owner.


def read_integer(header: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """An integer of a header from another process. Raises `DataError`."""
    value = header.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise DataError(f"{name}: expected an integer from {least} to {most}, got {value!r:.50}.")
    return value


def read_weights(given: Any, num_edge_types: int | None = None) -> tuple[str | None, ...]:
    """`DrawOptions.weights` from another process. Raises `DataError`."""
    named = isinstance(given, list) and all(name is None or (isinstance(name, str) and name) for name in given)
    if not named or (given and num_edge_types not in (None, len(given))):
        raise DataError(f"weights: expected the name of an attribute, or null, for each edge type; got {given!r:.100}.")
    return tuple(given)


@dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """replace: draw with replacement.  with_edge: edge rows are wanted, too.  threads: that share one draw; owners choose
    their own number.  weights: for each edge type the attribute that neighbours are drawn by, None where all weigh the same;
    empty: they do in all.  timed: of edge types with times those are drawn that the bounds of a tree permit (`kernels.Trees`).
    last: the latest of them.  labor: nodes have one random number in a hop each, and rows pick the smallest.  picker: picks in
    place of all this.

    Raises `DataError` for less than one thread, and for ``labor`` with ``replace`` or ``last``, and for both of these.

    Example:
        >>> SamplingOptions(with_edge=True, num_threads=2).draw
        DrawOptions(replace=False, with_edge=True, threads=2, weights=(), ...)
    """

    replace: bool = False
    with_edge: bool = False
    threads: int = field(default=1, metadata={"range": (1, 1 << 16)})  # of what another process may ask for
    weights: tuple[str | None, ...] = field(default=(), metadata={"read": read_weights})

    timed: bool = False
    last: bool = False
    labor: bool = False
    picker: PickerSpec | None = field(default=None, metadata={"read": PickerSpec.from_wire})

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise DataError(f"threads: expected at least 1, got {self.threads}.")
        if self.last and self.replace:
            raise DataError(
                "last: expected draws without replacement: the latest entries of a row are taken, none drawn."
            )
        if self.labor and (self.replace or self.last):
            raise DataError(
                "labor: expected draws without replacement from all entries of a row; got replace or last with it."
            )

    @property
    def values(self) -> dict[str, Any]:
        """The draw options alone, by name, for another class that has them, too."""
        return {f.name: getattr(self, f.name) for f in fields(DrawOptions)}

    @property
    def columns(self) -> tuple[str, ...]:
        """The arrays of `kernels.Picks` with an entry for each pick."""
        return ("neighbors", "edge_rows") if self.with_edge else ("neighbors",)

    @property
    def identity(self) -> dict[str, Any]:
        """The options that decide which neighbours are drawn: a checkpoint in mid-epoch resumes only with the same. None for what
        is not asked for, so that leaving it out is noticed; checkpoints of earlier releases lack it then."""
        return {
            "method": "labor" if self.labor else None,
            "replace": self.replace,
            "temporal_strategy": ("last" if self.last else "uniform") if self.timed else None,
            "weights": list(self.weights) if any(self.weights) else None,
            "picker": None if self.picker is None else str(self.picker),
        }

    def to_wire(self) -> dict[str, Any]:
        """The options that an owner has to know, as fields of the message ``expand``; most only where they are not at their
        defaults, so that headers stay small. They lie beside the question's own fields: a new one needs a name that no question
        has."""
        sent: dict[str, Any] = {"replace": self.replace, "with_edge": self.with_edge}
        sent |= {name: True for name in ("timed", "last", "labor") if getattr(self, name)}
        sent |= {} if self.picker is None else {"picker": self.picker.to_wire()}
        return sent | ({"weights": list(self.weights)} if any(self.weights) else {})

    @classmethod
    def from_wire(cls, header: Mapping[str, Any]) -> DrawOptions:
        """Of a message ``expand``; fields that it lacks have their defaults."""
        return cls(
            replace=bool(header.get("replace")),
            with_edge=bool(header.get("with_edge")),
            weights=read_weights(header.get("weights", [])),
            timed=bool(header.get("timed")),
            last=bool(header.get("last")),
            labor=bool(header.get("labor")),
            picker=PickerSpec.from_wire(header["picker"]) if "picker" in header else None,
        )


DEFAULT_DRAW = DrawOptions()
