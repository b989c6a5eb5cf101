"""How much of a GPU's memory its sampling may take."""

from __future__ import annotations

from dataclasses import dataclass

from glt_lightning.base.cache import CacheOptions
from glt_lightning.base.checks import advise
from glt_lightning.base.errors import OptionError
from glt_lightning.base.parse import parse_bytes
from glt_lightning.base.sampling import SamplingOptions


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
