"""How neighbours are drawn: the one value that travels from a loader's options to every op and every owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from glt_lightning.base.errors import DataError
from glt_lightning.base.picker import PickerSpec


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
    empty: they do in all.  timed: of edge types with times those are drawn that the bounds of a tree permit (`ops.trees.Trees`).
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
        """The arrays of `ops.merge.Picks` with an entry for each pick."""
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
        """The options that an owner has to know, as fields of the message ``expand``.

        The first two are sent always. Send a further one only where it is not at its default: owners of older releases then
        answer every question that they can.
        """
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
