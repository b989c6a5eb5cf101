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
        """As the options say, for GPUs that sample; `CacheOptions` has their old names. Raises `OptionError` where both names
        are given."""
        return cls(
            topology=_budget(sampling.topology_bytes, "topology_bytes", cache.device_topology, "device_topology"),
            features=_budget(sampling.feature_bytes, "feature_bytes", cache.device, "device"),
        )


def _budget(given: int | str | None, name: str, old: int | str | None, old_name: str) -> int | None:
    if old is None:
        return None if given is None else parse_bytes(f"sampling.{name}", given)
    if given is not None:
        raise OptionError(
            f"cache.{old_name} ({old!r}) and sampling.{name} ({given!r}) are both given, and a GPU samples: its budget is "
            f"sampling.{name}. Remove cache.{old_name}."
        )
    advise(
        f"cache.{old_name}: a GPU samples, and its budget is now called sampling.{name}. The value {old!r} is used for it; "
        "rename the option."
    )
    return parse_bytes(f"cache.{old_name}", old)
