"""Every option of the package: frozen dataclasses, the same in YAML, on the command line and in Python."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import PurePath
from typing import Any, Literal, TypeVar

from glt_lightning.errors import OptionError
from glt_lightning.types import MAX_FANOUT

Normalize = Literal["none", "rows", "standardize"]
SeedPlacement = Literal["global", "owner"]
Placement = Literal["host", "rank"]
FeatureDtype = Literal["float32", "stored"]
Hotness = Literal["auto", "vip", "degree", "presample"]
Memory = Literal["auto", "cpu", "device", "uva", "hybrid"]
CachePolicy = Literal["auto", "vip", "degree", "presample", "dynamic", "none"]
# One list for all edge types, or one per edge type (``src__rel__dst``).
Fanouts = list[int] | dict[str, list[int]]


def _above_zero(name: str, seconds: float) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
        raise OptionError(f"{name}: expected seconds > 0, got {seconds!r}.")


def _check_devices(name: str, devices: list[str]) -> None:
    for device in devices:
        if re.fullmatch(r"cuda:\d+", str(device)) is None:
            raise OptionError(f"{name}: expected devices such as cuda:0, got {device!r}.")


def _at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name}: expected an integer >= {least}, got {value!r}.")


_Options = TypeVar("_Options")


def as_options(kind: type[_Options], name: str, given: Any) -> _Options:
    """An options object, or a mapping of its fields. Raises `OptionError` for anything else."""
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise OptionError(f"{name}: expected {kind.__name__} or a mapping of its fields, got {given!r:.80}.")
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise OptionError(f"{name}: expected any of {', '.join(known)}; got {key!r}.{hint}")
    return kind(**given)


ALGORITHMS = ("random", "frequency", "metis", "streaming")
HOTNESS = ("auto", "vip", "degree", "presample")
CACHE_POLICIES = ("auto", "vip", "degree", "presample", "dynamic", "none")
BALANCE = ("nodes", "seeds", "edges")
STORAGE = ("float16", "bfloat16", "int8")
ALLOWED = ("nonfinite_features", "nonfinite_labels", "overlapping_splits", "sparse_labels", "unlabelled_seeds")
MEMORIES = ("auto", "cpu", "device", "uva", "hybrid")
_NUM_NEIGHBORS = [15, 10, 5]
_LEAST_REPLY, _MOST_REPLY = 64 << 10, 2047 << 20
_BALANCE = ["nodes", "seeds"]


@dataclass(frozen=True, kw_only=True)
class PartitionOptions:
    """How a graph is cut into parts.

    Attributes:
        num_parts: Number of parts, >= 1.
        algorithm: Who assigns nodes to parts: ``random``, ``frequency``, ``metis`` or ``streaming``; the path of an array
            of part numbers (``.npy``, or ``.npz`` with one array per node type); or the class path of a
            ``PartitionerBase``, alone or with ``{class_path, init_args}``.
        seed: Seed of the assignment.
        dir: Folder of the partition. ``None`` derives one below ``root`` from the data set and these options, so that
            other options make another folder.
        memory_bytes: Working memory of the partitioner beyond a few arrays of one entry per node. METIS takes more.
        balance: What ``metis`` and ``streaming`` spread evenly over the parts: ``nodes`` of each type, ``seeds`` of each
            split, ``edges`` by destination.
        imbalance: How much more than its even share a part may get, as a fraction.
        node_weight: Node attribute of integers >= 0 that says what a node weighs in ``nodes``. ``None``: all weigh 1.
        passes: Passes over the edges with which ``streaming`` groups nodes; and with which it and ``metis`` refine parts.
        hotness: How rows are ranked: ``vip`` by the probability to be in a batch of the part's own training seeds,
            ``presample`` by counting sampled batches, ``degree`` by edges. ``auto``: ``degree`` for ``random``, else
            ``vip``. Without training seeds it is always ``degree``.
        num_neighbors: Fan-outs that ``vip``, ``presample`` and ``frequency`` assume, as for sampling.
        batch_size: Batch size that they assume.
        storage: Attributes of nodes and edges that are stored, cached and sent in fewer bytes, and given as float32:
            ``{x: float16}``, ``bfloat16``, or ``int8`` with a scale per row.
        device: ``cpu``, or a CUDA device (``cuda``, ``cuda:1``) that works out ``vip`` and ``frequency``: the same
            numbers, sooner.
        allow: Doubtful data that is refused otherwise. ``nonfinite_labels``: NaN or infinite values in ``y``, where NaN
            marks an unknown label; ``nonfinite_features``: the same in other attributes; ``overlapping_splits``: training
            nodes that are also in ``val`` or ``test``; ``unlabelled_seeds``: training nodes without a label;
            ``sparse_labels``: more than ten times as many classes as labels that occur.
    """

    num_parts: int = 1
    algorithm: str | dict[str, Any] = "random"
    seed: int = 0
    dir: str | None = None
    memory_bytes: int = 2 << 30
    balance: list[str] = field(default_factory=lambda: list(_BALANCE))
    imbalance: float = 0.05
    node_weight: str | None = None
    passes: int = 3
    hotness: Hotness = "auto"
    num_neighbors: Fanouts = field(default_factory=lambda: list(_NUM_NEIGHBORS))
    batch_size: int = 1024
    storage: dict[str, str] = field(default_factory=dict)
    device: str = "cpu"
    allow: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        _at_least("partition.num_parts", self.num_parts, 1)
        _at_least("partition.seed", self.seed, 0)
        _at_least("partition.memory_bytes", self.memory_bytes, 1 << 20)
        _at_least("partition.passes", self.passes, 1)
        _at_least("partition.batch_size", self.batch_size, 1)
        self._check_algorithm()
        for name in self.balance:
            _one_of("partition.balance", name, BALANCE)
        _one_of("partition.hotness", self.hotness, HOTNESS)
        for name, kind in self.storage.items():
            _one_of(f"partition.storage.{name}", kind, STORAGE)
        allow: Any = self.allow
        for name in [allow] if isinstance(allow, str) else allow:
            _one_of("partition.allow", name, ALLOWED)
        if isinstance(self.imbalance, bool) or not isinstance(self.imbalance, (int, float)) or not self.imbalance > 0:
            raise OptionError(f"partition.imbalance: expected a fraction > 0 such as 0.05, got {self.imbalance!r}.")
        if re.fullmatch(r"cpu|cuda(:\d+)?", str(self.device)) is None:
            raise OptionError(f"partition.device: expected cpu, cuda or cuda:0 and so on, got {self.device!r}.")
        fanouts = self.num_neighbors
        for key, given in fanouts.items() if isinstance(fanouts, dict) else [(None, fanouts)]:
            parse_fanouts(given, "partition.num_neighbors" if key is None else f"partition.num_neighbors[{key}]")

    def _check_algorithm(self) -> None:
        given = self.algorithm
        if isinstance(given, dict):
            if not isinstance(given.get("class_path"), str) or set(given) - {"class_path", "init_args"}:
                raise OptionError(f"partition.algorithm: expected class_path and init_args, got {given!r}.")
        elif not isinstance(given, str) or (given not in ALGORITHMS and "." not in given):
            _one_of(
                "partition.algorithm", given, ALGORITHMS, "a path (parts.npy) or a class path (my_module.MyPartitioner)"
            )

    @property
    def algorithm_name(self) -> str:
        """Short name of the algorithm, fit for a folder."""
        given = self.algorithm["class_path"] if isinstance(self.algorithm, dict) else self.algorithm
        if given in ALGORITHMS:
            return given
        return PurePath(given).stem if given.endswith((".npy", ".npz")) else given.rpartition(".")[2]


def _one_of(name: str, given: object, known: Sequence[str], further: str = "") -> None:
    if given in known:
        return
    near = difflib.get_close_matches(str(given), known, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise OptionError(f"{name}: expected {', '.join([*known, further] if further else known)}; got {given!r}.{hint}")


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How batches are made.

    Attributes:
        num_workers: Sampler processes per rank; 0 samples inside the training process.
        concurrency: Batches that each sampler process has in flight; it makes as many at once as there are cores for.
        num_threads: Threads that share the work of one batch.
        replace: Draw neighbours with replacement.
        with_edge: Give each batch its ``e_id`` (and ``edge_attr`` where the graph has it).
        seed: Seed of all draws and shuffles. ``None``: Lightning's global seed, else one drawn on rank 0.
        seed_placement: ``global`` shuffles all seeds and deals them out; ``owner`` gives a rank the seeds of its parts.
        feature_dtype: ``stored`` gives attributes that ``partition.storage`` keeps as ``float16`` or ``bfloat16`` in that
            dtype: half the bytes in each batch. The ready modules cast them in their first layer, others have to. ``int8``
            is decoded all the same. ``float32`` decodes all.
        channel_size: Most bytes of batches in flight per rank, as an integer or like ``"2GB"``, but never fewer than two
            batches, and beside those that the trainer has. ``auto``: an eighth of the memory that the host, or the control
            group, has available, divided by the ranks of the host. ``None`` sets no limit beyond ``num_workers *
            concurrency`` batches, or ``cluster.prefetch_size`` from a server.
        pin_memory: Page-lock the memory of batches. ``None``: only when training on a GPU.
        max_restarts: How often a batch may be tried again after the sampler processes that had it died or raised, and how
            often in a row a process is replaced that makes nothing. Not a limit for the whole job.
        timeout_s: Longest wait for one batch, in seconds.
        topology: Where the graph lies that a GPU samples: ``device``, all in its memory; ``uva``, in page-locked memory of
            the host, which it reads; ``hybrid``, the hottest rows in its memory within ``cache.device_topology`` and the
            others on the host. ``cpu``: the CPU samples. ``auto``: when training on a GPU with ``num_workers`` 0, ``device``
            if it fits, else ``hybrid``; for ``worker_devices`` ``device``; otherwise ``cpu``.
        features: The same for attributes of nodes and edges, ``hybrid`` within ``cache.device``. ``cpu``: read by the CPU
            and copied to the GPU.
        prefetch: Batches that a GPU makes ahead of the one in training.
        worker_devices: GPUs on which the sampler processes sample, such as ``[cuda:0, cuda:1]``, in turn. Their batches
            come through the host's memory.
    """

    num_workers: int = 0
    concurrency: int = 4
    num_threads: int = 1
    replace: bool = False
    with_edge: bool = False
    seed: int | None = None
    seed_placement: SeedPlacement = "global"
    feature_dtype: FeatureDtype = "float32"
    channel_size: int | str | None = "auto"
    pin_memory: bool | None = None
    max_restarts: int = 3
    timeout_s: float = 300.0
    topology: Memory = "auto"
    features: Memory = "auto"
    prefetch: int = 2
    worker_devices: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        _at_least("sampling.num_workers", self.num_workers, 0)
        _at_least("sampling.prefetch", self.prefetch, 1)
        _one_of("sampling.topology", self.topology, MEMORIES)
        _one_of("sampling.features", self.features, MEMORIES)
        _check_devices("sampling.worker_devices", self.worker_devices)
        if self.worker_devices and not self.num_workers:
            raise OptionError("sampling.worker_devices: for sampler processes; set sampling.num_workers, too.")
        for name, kind in (("topology", self.topology), ("features", self.features)):
            if self.num_workers and not self.worker_devices and kind not in ("auto", "cpu"):
                raise OptionError(
                    f"sampling.{name}: {kind!r} with num_workers {self.num_workers}: give the sampler processes "
                    "worker_devices, or leave num_workers 0 to sample on the GPU that trains."
                )
        if self.topology == "cpu" and self.features not in ("auto", "cpu"):
            raise OptionError(
                f"sampling.features: {self.features!r} with topology cpu, where the CPU samples and reads attributes. Leave "
                "one of them out."
            )
        _at_least("sampling.concurrency", self.concurrency, 1)
        _at_least("sampling.num_threads", self.num_threads, 1)
        _at_least("sampling.max_restarts", self.max_restarts, 0)
        if self.seed is not None:
            _at_least("sampling.seed", self.seed, 0)
        if self.seed_placement not in ("global", "owner"):
            raise OptionError(f"sampling.seed_placement: expected 'global' or 'owner', got {self.seed_placement!r}.")
        _one_of("sampling.feature_dtype", self.feature_dtype, ("float32", "stored"))
        if not self.timeout_s > 0:
            raise OptionError(f"sampling.timeout_s: expected seconds > 0, got {self.timeout_s!r}.")
        if self.channel_size is not None and self.channel_size != "auto":
            parse_bytes("sampling.channel_size", self.channel_size)

    @property
    def channel_bytes(self) -> int | None:
        """``channel_size`` in bytes; None for no limit. ``auto`` must have become a number before."""
        assert self.channel_size != "auto", "only a process of the host knows what auto means"
        return None if self.channel_size is None else parse_bytes("sampling.channel_size", self.channel_size)


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """What is kept near the samplers. It changes how fast batches come, never what is in them.

    Attributes:
        policy: Which rows of other hosts' parts are kept: those that ``vip``, ``degree`` or ``presample`` rank highest;
            ``dynamic`` keeps what is asked for often while training; ``none`` keeps nothing. ``auto``: by the ranking
            that the partition folder has.
        ratio: How many of them, as a share of all nodes of each type, such as 0.1; or a share per node type, where types
            that are not named have none.
        bytes: Instead of ``ratio``, the memory for them on each host, such as ``"2GiB"``.
        topology: Memory, out of ``bytes``, for the neighbour lists of such nodes; ``auto`` divides ``bytes`` so that the
            least has to be asked of others.
        memory: Memory on each host for the attributes of its own parts. The hottest rows stay in it, the others are read
            from disk for each batch. ``None``: files are mapped, and the operating system decides.
        device: Memory on each GPU, such as ``"4GiB"``, for the attributes of the hottest nodes, whoever has them: batches
            bring only those of the others. Where GPUs sample: for what ``sampling.features: hybrid`` puts there. It has no
            effect when training on the CPU.
        device_topology: Memory on each GPU for the neighbour lists of the hottest nodes, with ``sampling.topology: hybrid``.
        save: Keep the filled cache beside the partition for later runs.
        num_neighbors: Fan-outs that ``presample`` and ``topology: auto`` assume. ``None``: those of training.
        batch_size: Batch size that they assume. ``None``: that of training.
    """

    policy: CachePolicy = "auto"
    ratio: float | dict[str, float] | None = None
    bytes: int | str | None = None
    topology: int | str | None = None
    memory: int | str | None = None
    device: int | str | None = None
    device_topology: int | str | None = None
    save: bool = False
    num_neighbors: Fanouts | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        _one_of("cache.policy", self.policy, CACHE_POLICIES)
        if self.ratio is not None and self.bytes is not None:
            raise OptionError(f"cache: give ratio or bytes, not both; got {self.ratio!r} and {self.bytes!r}.")
        ratios = self.ratio.items() if isinstance(self.ratio, dict) else [("", self.ratio)]
        for node_type, ratio in ratios:
            name = f"cache.ratio[{node_type}]" if node_type else "cache.ratio"
            number = isinstance(ratio, (int, float)) and not isinstance(ratio, bool)
            if ratio is not None and not (number and 0 <= ratio <= 1):
                raise OptionError(f"{name}: expected a share of the nodes from 0 to 1, such as 0.1; got {ratio!r}.")
        if self.bytes is not None:
            parse_bytes("cache.bytes", self.bytes)
        if self.memory is not None:
            parse_bytes("cache.memory", self.memory)
        if self.device is not None:
            parse_bytes("cache.device", self.device)
        if self.device_topology is not None:
            parse_bytes("cache.device_topology", self.device_topology)
        if self.topology is not None:
            if self.topology != "auto":
                parse_bytes("cache.topology", self.topology)
            if self.budget is None or self.topology_bytes > self.budget:
                raise OptionError(
                    f"cache.topology: a part of cache.bytes, which has to be as large; got {self.topology!r} of "
                    f"{self.bytes!r}."
                )
        if self.batch_size is not None:
            _at_least("cache.batch_size", self.batch_size, 1)

    def assuming(self, num_neighbors: Fanouts, batch_size: int) -> CacheOptions:
        """With these where none are given."""
        return replace(
            self,
            num_neighbors=num_neighbors if self.num_neighbors is None else self.num_neighbors,
            batch_size=batch_size if self.batch_size is None else self.batch_size,
        )

    @property
    def budget(self) -> int | None:
        """``bytes`` as a number."""
        return None if self.bytes is None else parse_bytes("cache.bytes", self.bytes)

    @property
    def topology_bytes(self) -> int:
        """``topology`` as a number; 0 for none, and for ``auto``."""
        return 0 if self.topology in (None, "auto") else parse_bytes("cache.topology", self.topology)

    @property
    def memory_bytes(self) -> int | None:
        """``memory`` as a number."""
        return None if self.memory is None else parse_bytes("cache.memory", self.memory)

    @property
    def device_bytes(self) -> int | None:
        """``device`` as a number."""
        return None if self.device is None else parse_bytes("cache.device", self.device)

    @property
    def device_topology_bytes(self) -> int | None:
        """``device_topology`` as a number."""
        return None if self.device_topology is None else parse_bytes("cache.device_topology", self.device_topology)

    @property
    def keeps_rows(self) -> bool:
        """Whether rows of other hosts' parts are kept."""
        return self.policy != "none" and (self.budget is not None or bool(self.ratio))


@dataclass(frozen=True, kw_only=True)
class DeadlineOptions:
    """How long the processes of a job wait for each other, in seconds.

    Attributes:
        connect_s: One attempt to reach a peer.
        call_s: One attempt of one call.
        reconnect_s: How long a peer that does not answer is tried again before the run fails.
        lease_s: How long a server keeps what a client holds that has not been heard of.
        start_s: Until the processes that a rank starts itself are ready.
        join_s: Until the ranks of all hosts of a job have met.
    """

    connect_s: float = 10.0
    call_s: float = 30.0
    reconnect_s: float = 120.0
    lease_s: float = 15.0
    start_s: float = 60.0
    join_s: float = 600.0

    def __post_init__(self) -> None:
        for name in ("connect_s", "call_s", "reconnect_s", "lease_s", "start_s", "join_s"):
            _above_zero(f"cluster.deadlines.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class RetryOptions:
    """The pauses between attempts to reach a peer: ``first_s``, doubled each time, up to ``most_s``."""

    first_s: float = 0.05
    most_s: float = 2.0

    def __post_init__(self) -> None:
        _above_zero("cluster.retry.first_s", self.first_s)
        _above_zero("cluster.retry.most_s", self.most_s)


@dataclass(frozen=True, kw_only=True)
class SecurityOptions:
    """Who may talk to the processes of a job. ``glt-lightning certs`` makes the files.

    Attributes:
        ca: PEM file of the authority that signed every certificate of the job.
        cert: PEM file of this host's certificate.
        key: PEM file of its private key.
        token_file: File with the job's secret, at least 16 characters; the same on all hosts.
        insecure: Allow clear text beyond the loopback interface.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    token_file: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        given = [name for name in ("ca", "cert", "key") if getattr(self, name) is not None]
        if 0 < len(given) < 3:
            raise OptionError(
                f"cluster.security: expected ca, cert and key together, got {' and '.join(given)} only. "
                "`glt-lightning certs` makes all three."
            )

    @property
    def tls(self) -> bool:
        """Whether peers prove who they are with certificates."""
        return self.ca is not None


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """How much of a process that serves others its clients may have. Who finds it full tries again until its deadline.

    Attributes:
        streams: Streams that it has open in all; a client has two for its calls, and one for its batches. Each takes a
            thread. Where all are taken, an idle connection of the address that has the most is ended.
        streams_per_host: Those from one address.
        sessions: Sessions of clients that a graph server has. Where all are taken, an idle one of the address that has the
            most is ended.
        unread_size: Bytes of replies that are made for one connection and not read yet, such as ``"256MB"``. One reply is
            always made.
        unread_total_size: The same for all connections; where it is reached, the one with the most is ended if it does not
            read.
        reply_size: Bytes of one reply of a process that owns parts. A larger answer (a node with millions of neighbours, at
            fan-out -1) is asked for in pieces.
        batch_size: Bytes of one batch that a graph server makes. A question with fan-outs that lead to a larger one gets an
            error.
    """

    streams: int = 1024
    streams_per_host: int = 768
    sessions: int = 1024
    unread_size: int | str = "256MB"
    unread_total_size: int | str = "2GB"
    reply_size: int | str = "256MiB"
    batch_size: int | str = "8GiB"

    def __post_init__(self) -> None:
        for name in ("streams", "streams_per_host", "sessions"):
            _at_least(f"cluster.limits.{name}", getattr(self, name), 1)
        for name in ("unread_size", "unread_total_size", "reply_size", "batch_size"):
            parse_bytes(f"cluster.limits.{name}", getattr(self, name))
        if not _LEAST_REPLY <= self.reply_bytes <= _MOST_REPLY:
            raise OptionError(
                "cluster.limits.reply_size: expected 64KiB to 2047MiB, the most that one message takes; got "
                f"{self.reply_size!r}."
            )

    @property
    def unread_bytes(self) -> int:
        """``unread_size`` in bytes."""
        return parse_bytes("cluster.limits.unread_size", self.unread_size)

    @property
    def unread_total_bytes(self) -> int:
        """``unread_total_size`` in bytes."""
        return parse_bytes("cluster.limits.unread_total_size", self.unread_total_size)

    @property
    def reply_bytes(self) -> int:
        """``reply_size`` in bytes."""
        return parse_bytes("cluster.limits.reply_size", self.reply_size)

    @property
    def batch_bytes(self) -> int:
        """``batch_size`` in bytes."""
        return parse_bytes("cluster.limits.batch_size", self.batch_size)


_DEADLINES, _RETRY, _SECURITY = DeadlineOptions(), RetryOptions(), SecurityOptions()


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Where the graph is served and sampled.

    Attributes:
        servers: Addresses of the graph servers, ``host:port``, in the order of their ranks. Empty: ``glt_server_client``
            starts one itself, if all ranks are on one host.
        server_rank: The server that makes this rank's batches; ``auto`` takes rank mod servers.
        num_workers: Sampler processes of a server.
        concurrency: Batches that each of them has in flight.
        worker_devices: GPUs of a server on which these sample, such as ``[cuda:0, cuda:1]``, in turn; from where
            ``sampling.topology`` and ``sampling.features`` say. Empty: the CPU samples.
        buffer_size: Most bytes of finished batches that a server keeps for one client. ``auto``: its clients share an
            eighth of the memory that its host, or control group, has available when it starts; each may have two batches.
        prefetch_size: Batches that a client asks for ahead.
        placement: Which parts a rank maps in ``glt_worker``: ``host`` gives part p to host p mod hosts, so that a single
            host maps all; ``rank`` gives part p to rank p mod ranks.
        host: Name or address under which other hosts reach this one. ``None``: loopback if all ranks are on one host,
            else the address from which MASTER_ADDR is reached.
        deadlines: How long to wait for peers.
        retry: Pauses between attempts.
        limits: How much clients may have of a process that serves them.
        security: Who may talk to the processes of the job.
        peer_timeout_s: How long a rank may go on after another rank of the job died, in seconds.
        peer_silence_s: After how many seconds without a sign of life a rank of the same host that is stopped is killed, which
            ends the job; five times as long for one that is not stopped and uses no CPU time. Slow steps, compilations and
            long validations are no silence.
    """

    servers: list[str] = field(default_factory=list)
    server_rank: int | Literal["auto"] = "auto"
    num_workers: int = 2
    concurrency: int = 4
    worker_devices: list[str] = field(default_factory=list)
    buffer_size: int | str = "auto"
    prefetch_size: int = 4
    placement: Placement = "host"
    host: str | None = None
    deadlines: DeadlineOptions = _DEADLINES
    retry: RetryOptions = _RETRY
    limits: LimitOptions = field(default_factory=LimitOptions)
    security: SecurityOptions = _SECURITY
    peer_timeout_s: float = 30.0
    peer_silence_s: float = 60.0

    def __post_init__(self) -> None:
        kinds = {
            "deadlines": DeadlineOptions,
            "retry": RetryOptions,
            "limits": LimitOptions,
            "security": SecurityOptions,
        }
        for name, kind in kinds.items():
            object.__setattr__(self, name, as_options(kind, f"cluster.{name}", getattr(self, name)))
        for address in self.servers:
            parse_address("cluster.servers", address)
        _at_least("cluster.num_workers", self.num_workers, 1)
        _at_least("cluster.concurrency", self.concurrency, 1)
        _at_least("cluster.prefetch_size", self.prefetch_size, 1)
        _check_devices("cluster.worker_devices", self.worker_devices)
        if self.buffer_size != "auto":
            parse_bytes("cluster.buffer_size", self.buffer_size)
        if self.server_rank != "auto":
            _at_least("cluster.server_rank", self.server_rank, 0)
            if self.servers and self.server_rank >= len(self.servers):
                raise OptionError(
                    f"cluster.server_rank: {self.server_rank} names none of the {len(self.servers)} cluster.servers."
                )
        if self.placement not in ("host", "rank"):
            raise OptionError(f"cluster.placement: expected 'host' or 'rank', got {self.placement!r}.")
        _above_zero("cluster.peer_timeout_s", self.peer_timeout_s)
        _above_zero("cluster.peer_silence_s", self.peer_silence_s)

    @property
    def buffer_bytes(self) -> int | None:
        """``buffer_size`` in bytes; None for ``auto``."""
        return None if self.buffer_size == "auto" else parse_bytes("cluster.buffer_size", self.buffer_size)


def parse_address(name: str, address: str) -> tuple[str, int]:
    """``"host:port"`` or ``"[::1]:port"`` -> (host, port). Raises `OptionError`."""
    host, _, port = str(address).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 <= int(port) <= 65535 or "/" in host:
        raise OptionError(f"{name}: expected addresses like '10.0.0.1:18800' or 'node1:18800', got {address!r}.")
    return host, int(port)


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(name: str, value: int | str) -> int:
    """``"1.5GiB"`` -> 1610612736; integers pass. Raises `OptionError` for anything else or for less than one byte."""
    text = str(value).strip().upper()
    number = text.rstrip("KMGTIB ")
    try:
        size = int(float(number) * _UNITS[text[len(number) :].strip()])
    except (ValueError, KeyError, OverflowError):
        size = 0
    if size < 1:
        raise OptionError(f"{name}: expected bytes such as 500000000, '500MB' or '2GiB', got {value!r}.")
    return size


def parse_fanouts(num_neighbors: list[int], name: str = "num_neighbors") -> tuple[int, ...]:
    """Checks one list of fan-outs, first hop first: each -1 (all neighbours) or 1 to `MAX_FANOUT`."""
    ok = isinstance(num_neighbors, (list, tuple)) and len(num_neighbors) > 0
    if ok:
        ok = all(
            isinstance(k, int) and not isinstance(k, bool) and (k == -1 or 1 <= k <= MAX_FANOUT) for k in num_neighbors
        )
    if not ok:
        given = num_neighbors if isinstance(num_neighbors, (list, tuple)) else ()
        hint = " Drop the hop instead of asking for 0." if 0 in given else ""
        if any(isinstance(k, int) and k > MAX_FANOUT for k in given):
            hint = " Use -1 to take all neighbours."
        raise OptionError(
            f"{name}: expected one integer per hop, each -1 (all) or 1 to {MAX_FANOUT}; got {num_neighbors!r}.{hint}"
        )
    return tuple(num_neighbors)
