"""The user's own function over every batch of a loader."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from glt_lightning.base import ClassSpec, DataError, OptionError
from glt_lightning.loader.collate import Batch


@dataclass(frozen=True)
class BatchTransform:
    """A function from batch to batch. name: for errors."""

    name: str
    function: Callable[[Batch], Batch]

    @classmethod
    def of(cls, option: str, given: Any) -> BatchTransform | None:
        """given: a callable; the import path of a class or function; ``{class_path, init_args}``; or None. Raises `OptionError`,
        or `DataError` for what cannot be imported or made."""
        if given is None or isinstance(given, cls):
            return given
        if isinstance(given, (str, Mapping, Namespace)):
            spec = ClassSpec.parse(option, given)
            return cls(spec.text, spec.make())
        if callable(given):
            return cls(getattr(given, "__qualname__", None) or type(given).__qualname__, given)
        raise OptionError(
            f"{option}: expected one transform of batches: a class path, the path of a function, {{class_path, init_args}} or a "
            f"callable; got {given!r:.200}. The list of what changes the graph before it is partitioned is data.transforms."
        )

    @property
    def added_features(self) -> int:
        """Columns that it appends to ``x``: what the function says by an attribute of this name."""
        return int(getattr(self.function, "added_features", 0))

    def __call__(self, batch: Batch, loader: str, number: int) -> Batch:
        """The batch to use in its place. Raises `DataError` that names the transform and the batch where it fails."""
        where = f"loader {loader!r}: transform {self.name}:"
        try:
            out = self.function(batch)
        except Exception as error:  # the user's code may raise anything
            raise DataError(f"{where} failed on batch {number} ({type(error).__name__}: {error}).") from error
        if not isinstance(out, Batch):
            raise DataError(
                f"{where} returned {type(out).__name__} for batch {number}; expected a Data or HeteroData. Return the batch that "
                "was given, changed, or a new one."
            )
        return out
