"""What a batch holds, to be compared later: ``assert contents(a) == contents(b)`` names the field and the index that differ.

tests/conftest.py gives pytest the words (`explain`), also for lists of batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData

from glt_lightning.sampling import Sample


@dataclass(frozen=True)
class FieldBits:
    """One field, copied. kind: its dtype as the batch has it.  bits: of dtype ``stored``."""

    name: str
    kind: str
    stored: str
    shape: tuple[int, ...]
    bits: bytes

    @property
    def array(self) -> np.ndarray:
        return np.frombuffer(self.bits, dtype=self.stored).reshape(self.shape)


@dataclass(frozen=True)
class Contents:
    """All fields of a batch in their order, bit for bit. A copy: a batch is a view of memory that is used again."""

    fields: tuple[FieldBits, ...]

    def __repr__(self) -> str:
        return f"Contents of {len(self.fields)} fields #{hash(self) & 0xFFFF:04x}"


def contents(batch: Data | HeteroData | Sample) -> Contents:
    return Contents(tuple(_bits(name, value) for name, value in _fields(batch)))


def _fields(batch: Data | HeteroData | Sample) -> Iterable[tuple[str, Any]]:
    if isinstance(batch, Sample):
        return batch.arrays.items()
    stores = [("" if store._key is None else f"{store._key} ", store) for store in batch.stores]
    fields = [(f"{key}{name}", value) for key, store in stores for name, value in store.items()]
    return [each for name, value in fields for each in _parts(name, value)]


def _parts(name: str, value: Any) -> list[tuple[str, Any]]:
    """A field; of an `EdgeIndex` also what it holds beside the edges."""
    if not isinstance(value, EdgeIndex):
        return [(name, value)]
    size, order = value.sparse_size(), value.sort_order
    pointers = {"colptr": value._indptr, "rowptr": value._T_indptr, "perm": value._T_perm, "col": value._T_index[1]}
    more = [(f"{name} {key}", found) for key, found in pointers.items() if found is not None]
    return [(name, value.as_tensor()), (f"{name} facts", repr((type(value).__name__, size, order))), *more]


def _bits(name: str, value: Any) -> FieldBits:
    kind = str(value.dtype) if isinstance(value, (torch.Tensor, np.ndarray)) else type(value).__name__
    if isinstance(value, torch.Tensor):
        value = (value.view(torch.int16) if value.dtype == torch.bfloat16 else value).contiguous().cpu().numpy()
    array = np.asarray(value)
    if array.dtype.hasobject:
        array = np.asarray(repr(value))
    return FieldBits(name, kind, array.dtype.str, array.shape, array.tobytes())


def difference(got: Any, want: Any, where: str = "") -> str | None:
    """The first difference of two batches, or of two lists (of lists) of them, in words; None if there is none."""
    if isinstance(got, Contents) and isinstance(want, Contents):
        return _of_batches(got, want, where)
    if not isinstance(got, (list, tuple)) or not isinstance(want, (list, tuple)):
        return None if got == want else f"{where}{got!r}, expected {want!r}"
    found = (difference(a, b, f"{where}[{i}] ") for i, (a, b) in enumerate(zip(got, want, strict=False)))
    first = next((text for text in found if text is not None), None)
    if first is None and len(got) != len(want):
        return f"{where}{len(got)} of them, expected {len(want)}; all that both have are equal"
    return first


def _of_batches(got: Contents, want: Contents, where: str) -> str | None:
    mine, theirs = ([field.name for field in each.fields] for each in (got, want))
    if mine != theirs:
        return f"{where}has the fields {mine}, expected {theirs}"
    pairs = zip(got.fields, want.fields, strict=True)
    return next((f"{where}field {a.name}: {_of_fields(a, b)}" for a, b in pairs if a != b), None)


def _of_fields(got: FieldBits, want: FieldBits) -> str:
    for name in ("kind", "stored", "shape"):
        mine, theirs = getattr(got, name), getattr(want, name)
        if mine != theirs:
            return f"{'shape' if name == 'shape' else 'dtype'} {mine}, expected {theirs}"
    size = np.dtype(got.stored).itemsize
    mine, theirs = (np.frombuffer(each.bits, dtype=np.uint8).reshape(-1, size) for each in (got, want))
    wrong = np.flatnonzero((mine != theirs).any(axis=1))  # bytes: a NaN equals itself, and 0 is not -0
    index = tuple(int(i) for i in np.unravel_index(wrong[0], got.shape))
    count = f"{len(wrong)} of {len(mine)} elements differ, first at {list(index)}"
    return f"{count}: {got.array[index]!r}, expected {want.array[index]!r}"


def explain(got: Any, want: Any) -> list[str] | None:
    """For pytest, of a comparison that failed; None where it is not about batches."""
    if not _is_about_batches(got) or not _is_about_batches(want):
        return None
    return ["batches differ:", difference(got, want) or "not in what they hold"]


def _is_about_batches(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_is_about_batches(each) for each in value)
    return isinstance(value, Contents)
