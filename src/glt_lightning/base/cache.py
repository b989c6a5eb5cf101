"""Options of caches: remote rows on a host, own rows in memory, rows on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from glt_lightning.base.checks import advise, one_of, parse_bytes
from glt_lightning.base.errors import OptionError
from glt_lightning.base.removed import refuse_removed_values, without_removed
from glt_lightning.base.sampling import SamplingOptions

CachePolicy = Literal["auto", "vip", "degree", "none"]
CACHE_POLICIES = ("auto", "vip", "degree", "none")


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """Rows that are held in memory near the samplers. They change how fast batches come, never what is in them. Without
    ``ratio``, ``bytes`` and ``device`` there is no cache of a graph that fits into memory.

    Attributes:
        policy: Which remote rows (rows of parts that other hosts own) a host caches: those that ``vip`` or ``degree``
            ranks highest; with ``none``, no rows. ``auto``: by the ranking of the partition folder.
        ratio: Size of the remote cache as a share of all nodes of each type, such as 0.1; or a share per node type
            (``{paper: 0.2}``), where a type that is not named has no cache.
        bytes: Size of the remote cache in bytes per host, such as ``"2GiB"``, instead of ``ratio``.
        topology: Bytes, taken out of ``bytes``, for neighbour lists of the hottest nodes.
        memory: Bytes per host for the attributes of the host's own parts. The hottest rows stay in memory, the other rows are
            read from disk for each batch. ``auto``: where the parts of this host's processes do not fit into 63/64 of the memory
            that is available, what 3/4 of it leaves beside the topology; else, and with GPUs that sample, as ``None``. ``None``:
            files are mapped, and the operating system decides.
        device: Bytes on the GPU that trains, such as ``"4GiB"``, for the attributes of the hottest nodes of all parts: batches
            from the CPU bring only the rows of the other nodes. (The budget of a GPU that samples is
            ``sampling.feature_bytes``.)

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> CacheOptions(policy="vip", ratio=0.1).policy
        'vip'
        >>> CacheOptions(ratio=2.0)
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: cache.ratio: ...
    """

    policy: CachePolicy = "auto"
    ratio: float | dict[str, float] | None = None
    bytes: int | str | None = None
    topology: int | str | None = None
    memory: int | str | None = "auto"
    device: int | str | None = None

    def __post_init__(self) -> None:
        refuse_removed_values("cache", vars(self))
        one_of("cache.policy", self.policy, CACHE_POLICIES)
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
        if self.memory not in (None, "auto"):
            parse_bytes("cache.memory", self.memory)
        if self.device is not None:
            parse_bytes("cache.device", self.device)
        if self.topology is not None:
            parse_bytes("cache.topology", self.topology)
            if self.budget is None or self.topology_bytes > self.budget:
                given = "not set" if self.bytes is None else repr(self.bytes)
                raise OptionError(
                    f"cache.topology ({self.topology!r}) is carved out of cache.bytes and must not exceed it; "
                    f"cache.bytes is {given}."
                )

    @property
    def budget(self) -> int | None:
        """``bytes`` as a number."""
        return None if self.bytes is None else parse_bytes("cache.bytes", self.bytes)

    @property
    def topology_bytes(self) -> int:
        """``topology`` as a number; 0 for none."""
        return 0 if self.topology is None else parse_bytes("cache.topology", self.topology)

    @property
    def memory_bytes(self) -> int | None:
        """``memory`` as a number; None also for ``auto``."""
        return None if self.memory in (None, "auto") else parse_bytes("cache.memory", self.memory)

    @property
    def device_bytes(self) -> int | None:
        """``device`` as a number."""
        return None if self.device is None else parse_bytes("cache.device", self.device)

    @property
    def keeps_rows(self) -> bool:
        """Whether remote rows are cached."""
        return self.policy != "none" and (self.budget is not None or bool(self.ratio))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a pickle, such as hyperparameters in a checkpoint; one of an earlier release may have options that were removed."""
        self.__dict__.update(without_removed("cache", state))


# How much of a GPU's memory its sampling may take.


@dataclass(frozen=True, kw_only=True)
class GpuBudgets:
    """Bytes of each GPU that samples, for what is ``hybrid``. None: not given.

    topology: for neighbour lists.  features: for attributes.

    Example:
        >>> GpuBudgets.of(SamplingOptions(topology="hybrid", topology_bytes="2GB"), CacheOptions())
        GpuBudgets(topology=2000000000, features=None)
    """

    topology: int | None = None
    features: int | None = None

    @classmethod
    def of(cls, sampling: SamplingOptions, cache: CacheOptions) -> GpuBudgets:
        """As the options say; a GPU that samples takes ``cache.device`` for ``sampling.feature_bytes``. Raises `OptionError`
        where both are given."""
        topology, features = sampling.topology_bytes, sampling.feature_bytes
        if cache.device is not None:
            features = _of_cache(cache.device, features)
        return cls(
            topology=None if topology is None else parse_bytes("sampling.topology_bytes", topology),
            features=None if features is None else parse_bytes("sampling.feature_bytes", features),
        )


def _of_cache(device: int | str, given: int | str | None) -> int | str:
    if given is not None:
        raise OptionError(
            f"cache.device ({device!r}) and sampling.feature_bytes ({given!r}) are both given, and a GPU samples: its budget is "
            "sampling.feature_bytes. Remove cache.device."
        )
    advise(
        f"cache.device: a GPU samples, and its budget is now called sampling.feature_bytes. The value {device!r} is used for it; "
        "rename the option."
    )
    return device
