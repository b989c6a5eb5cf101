"""Options of tensors of one's own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

from glt_lightning.base.checks import one_of, parse_bytes


@dataclass(frozen=True, kw_only=True)
class TensorOptions:
    """What tensors of one's own may take, and what is checked about them.

    Attributes:
        limit: Bytes that the tensors of a host may take together, such as ``"20GB"``; checked before a tensor takes any.
            ``auto``: half of the host's memory.
        check_conflicts: Notes which rank wrote to each row, so that ``barrier()`` finds rows that two ranks have written to
            since the last one. It takes 8 bytes a row and makes writes slower.
        storage: Where tensors lie that do not say it themselves. ``memory``, or ``disk``: in a file without a name that ends
            with the job, of which memory holds what was used last; ``limit`` does not count it.
        scratch: Folder on a disk of each host for ``storage: disk``. None: the system's folder for temporary files.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> TensorOptions(limit="2GB").limit_bytes
        2000000000
    """

    STORAGES: ClassVar = ("memory", "disk")

    limit: int | str = "auto"
    check_conflicts: bool = False
    storage: str = "memory"
    scratch: str | None = None

    def __post_init__(self) -> None:
        if self.limit != "auto":
            parse_bytes("cluster.tensors.limit", self.limit)
        one_of("cluster.tensors.storage", self.storage, self.STORAGES)

    @property
    def limit_bytes(self) -> int:
        """``limit`` in bytes."""
        if self.limit == "auto":
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        return parse_bytes("cluster.tensors.limit", self.limit)
