"""How neighbours are drawn: the one value that travels from a loader's options to every op and every owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glt_lightning.errors import DataError


@dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """replace: draw with replacement.  with_edge: edge rows are wanted, too.  threads: that share one draw; owners choose
    their own number."""

    replace: bool = False
    with_edge: bool = False
    threads: int = 1

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise DataError(f"threads: expected at least 1, got {self.threads}.")

    def to_wire(self) -> dict[str, Any]:
        """What an owner has to know, as fields of the message ``expand``."""
        return {"replace": self.replace, "with_edge": self.with_edge}

    @classmethod
    def from_wire(cls, header: Mapping[str, Any]) -> DrawOptions:
        """Of a message ``expand``; fields that it lacks have their defaults."""
        return cls(replace=bool(header.get("replace")), with_edge=bool(header.get("with_edge")))
