"""A message: a small JSON header and one body of raw arrays.

All input is checked before it is used: none makes this process crash, recurse, or take more memory than the input's
size.

The header is one JSON object. Allowed are strings that UTF-8 can represent, integers of at most 20 characters, finite
numbers, true, false, null, lists and objects, nested at most 16 deep.

``arrays`` describes the body, in the header of any message that has one:

    "arrays": [[name, dtype, shape, offset], ...]

* name: a string of at most 200 characters, once per message.
* dtype: ``|b1 |i1 |u1 <i2 <u2 <f2 <i4 <u4 <f4 <i8 <u8 <f8``, as numpy spells them. bfloat16 travels as the ``<u2`` it
  is stored as.
* shape: at most 8 counts.
* offset: bytes from the start of the body, a multiple of the item's size. We write multiples of 64.

Every array must lie inside the body. A reader computes with unbounded integers and checks all entries before it makes
an array.

A header has at most 64 KiB, a message at most 1024 arrays, a body at most 2 GiB - 1 MiB.

JSON needs no dependency, and headers are small: 140 bytes for an ``expand``, 340 for a batch of nine arrays. Encoding
one takes 5 to 13 µs and decoding with all checks 11 to 40 µs of the 200 µs of CPU that a call costs both ends."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glt_lightning.base import PeerError
from glt_lightning.sampling import Placed
from glt_lightning.workers.slots import Slot, SlotPool

EMPTY = np.empty(0, dtype=np.uint8)
MOST_HEADER = 64 << 10  # bytes of JSON
MOST_BODY = (1 << 31) - (1 << 20)  # bytes; a Flight message is limited to 2 GiB, frame and padding included
MOST_ARRAYS = 1024
MOST_DIMS = 8
MOST_NAME = 200  # characters of an array's name
_MOST_DEPTH = 16  # of lists and objects in a header
_MOST_DIGITS = 20  # of an integer: enough for 64 bits
_ALIGN = 64


# Numbers and booleans, little-endian. bfloat16 travels as the uint16 it is stored as.
DTYPES = ("|b1", "|i1", "|u1", "<i2", "<u2", "<f2", "<i4", "<u4", "<f4", "<i8", "<u8", "<f8")
_DTYPES = {text: np.dtype(text) for text in DTYPES}


class WireError(PeerError):
    """The input is no message of this protocol."""


@dataclass(frozen=True)
class Message:
    """A message. header: values that JSON can represent.  body: uint8 [n], arrays at the offsets in the header."""

    header: Mapping[str, Any]
    body: np.ndarray = field(default_factory=lambda: EMPTY)

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], header: Mapping[str, Any] | None = None) -> Message:
        """Makes a message that has copies of arrays, and the values of ``header``."""
        entries, body = pack(arrays)
        return cls({**(header or {}), "arrays": entries}, body)

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays by name: views of the body. Raises `WireError` unless each lies inside the body."""
        layout = parse_layout(self.header.get("arrays", []), len(self.body))
        return {place.name: place.view(self.body) for place in layout}


def encode_header(header: Mapping[str, Any]) -> bytes:
    """Encodes a header as JSON. Raises `WireError` if it is too large or has values that JSON cannot represent."""
    try:
        text = _ENCODER.encode(dict(header))
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError(f"header: expected strings, integers, finite numbers, lists and objects: {error}.") from None
    data = text.encode("utf-8", "replace")  # a path may have bytes that are not UTF-8
    if len(data) > MOST_HEADER:
        raise WireError(
            f"header: {len(data)} bytes, at most {MOST_HEADER} are allowed. Send long lists as arrays in the body."
        )
    return data


def decode_header(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Decodes a header: the inverse of `encode_header`. Raises `WireError` for anything else."""
    if len(data) > MOST_HEADER:
        raise WireError(f"header: {len(data)} bytes, at most {MOST_HEADER} are allowed.")
    try:
        header = _DECODER.decode(str(data, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise WireError(f"header: cannot be read as JSON: {_short(error)}.") from None
    if not isinstance(header, dict):
        raise WireError(f"header: expected an object, got {_short(type(header).__name__)}.")
    _check_values(header)
    return header


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits; at most {_MOST_DIGITS} are allowed")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number beyond the range of float64")
    return value


def _constant(text: str) -> float:
    raise ValueError(f"{text} is not allowed")


# made once: with these arguments json.dumps and json.loads would make a new one for every message
_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_int=_integer, parse_float=_number, parse_constant=_constant)


def _check_values(header: dict[str, Any]) -> None:
    """Refuses deep nesting and strings with half a surrogate pair; both would fail somewhere later."""
    level: list[Any] = [header]
    for _ in range(_MOST_DEPTH):
        below: list[Any] = []
        for container in level:
            values: Iterable[Any] = container
            if isinstance(container, dict):
                _check_texts(container)
                values = container.values()
            for value in values:
                if isinstance(value, str):
                    _check_texts((value,))
                elif isinstance(value, (dict, list)):
                    below.append(value)
        if not below:
            return
        level = below
    raise WireError(f"header: nested deeper than {_MOST_DEPTH} levels.")


def _check_texts(texts: Iterable[str]) -> None:
    for text in texts:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise WireError(
                    "header: a string contains half a surrogate pair, which UTF-8 cannot represent."
                ) from None


def as_body(body: Any) -> np.ndarray:
    """Views any contiguous buffer as uint8 [n], without a copy."""
    if isinstance(body, np.ndarray) and body.dtype == np.uint8 and body.ndim == 1 and body.flags.c_contiguous:
        return body
    view = memoryview(body).cast("B")
    return np.frombuffer(view, dtype=np.uint8) if len(view) else EMPTY


def pack(arrays: Mapping[str, np.ndarray]) -> tuple[list[list[Any]], np.ndarray]:
    """Copies arrays into one new body. Returns (entries for the header's ``arrays``, body uint8 [n])."""
    layout, end = lay_out({name: (array.dtype, array.shape) for name, array in arrays.items()})
    entries = layout_entries(layout)
    body = np.empty(end, dtype=np.uint8)
    for place, array in zip(layout, arrays.values(), strict=True):
        place.view(body)[...] = array
    zero_padding(layout, body)
    return entries, body


def zero_padding(layout: Sequence[Placed], body: np.ndarray) -> None:
    """Overwrites the bytes between arrays, which would leak older contents of this memory to a peer."""
    for place in layout:
        used = place.offset + math.prod(place.shape) * _DTYPES[place.dtype].itemsize
        body[used : -(-used // _ALIGN) * _ALIGN] = 0


def lay_out(shapes: Mapping[str, tuple[np.dtype, tuple[int, ...]]]) -> tuple[list[Placed], int]:
    """Lays out arrays of these dtypes and shapes in one body. Returns the layout, and the bytes of the body."""
    layout, end = [], 0
    for name, (dtype, shape) in shapes.items():
        layout.append(Placed(name, dtype.str, shape, end))
        end += -(-math.prod(shape) * dtype.itemsize // _ALIGN) * _ALIGN
    return layout, end


def layout_entries(layout: Sequence[Placed]) -> list[list[Any]]:
    """Encodes a layout as the ``arrays`` of a header, for a body that is laid out already, such as that of a
    `sampling.sample.Draft`. Raises `WireError` for a dtype that the protocol does not carry."""
    for place in layout:
        if place.dtype not in _DTYPES:
            raise WireError(f"array {place.name!r}: dtype {place.dtype} cannot be sent; allowed: {', '.join(DTYPES)}.")
    return [[place.name, place.dtype, list(place.shape), place.offset] for place in layout]


def own_layout(entries: Sequence[Sequence[Any]]) -> list[Placed]:
    """Decodes entries of `layout_entries` that a sampler process of this one sent: not checked, and of any size."""
    return [Placed(name, dtype, tuple(shape), offset) for name, dtype, shape, offset in entries]


def parse_layout(entries: Any, nbytes: int) -> list[Placed]:
    """Decodes entries of `layout_entries` from any peer, for a body of ``nbytes``. Raises `WireError` for entries that do not
    fit."""
    if not isinstance(entries, list) or len(entries) > MOST_ARRAYS:
        raise WireError(f"arrays: expected a list of at most {MOST_ARRAYS} entries.")
    layout = [_placed(entry, nbytes) for entry in entries]
    if len({place.name for place in layout}) != len(layout):
        raise WireError("arrays: the same name is given twice.")
    # So that a copy of each array takes no more memory than the body.
    if (total := sum(math.prod(place.shape) * _DTYPES[place.dtype].itemsize for place in layout)) > nbytes:
        raise WireError(f"arrays: {total} bytes in a body of {nbytes}; entries may not overlap.")
    return layout


def _placed(entry: Any, nbytes: int) -> Placed:
    if not isinstance(entry, list) or len(entry) != 4:
        raise WireError(f"arrays: expected [name, dtype, shape, offset], got {_short(entry)}.")
    name, dtype, shape, offset = entry
    if not isinstance(name, str) or len(name) > MOST_NAME:
        raise WireError(f"arrays: expected a name of at most {MOST_NAME} characters, got {_short(name)}.")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise WireError(f"array {name!r}: expected one of {', '.join(DTYPES)}, got {_short(dtype)}.")
    if not isinstance(shape, list) or len(shape) > MOST_DIMS or not all(_count(n) for n in shape):
        raise WireError(f"array {name!r}: expected a shape of at most {MOST_DIMS} counts, got {_short(shape)}.")
    itemsize = _DTYPES[dtype].itemsize
    # Python's integers do not overflow; an empty array must not name a width that numpy cannot hold.
    if math.prod(n for n in shape if n) * itemsize > MOST_BODY:
        raise WireError(f"array {name!r}: shape {_short(shape)} is too large.")
    size = math.prod(shape) * itemsize
    if not _count(offset) or offset % itemsize or offset + size > nbytes:
        raise WireError(
            f"array {name!r}: {size} bytes at offset {_short(offset)} exceed the body of {nbytes} bytes, or are not aligned."
        )
    return Placed(name, dtype, tuple(shape), offset)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


# Recycled memory for received bodies: fresh memory costs more than the copy into it (page faults).


class Recycler:
    """Lends memory that comes back when the last view of it is gone. Thread-safe. slots: the number of pieces that are
    recycled at the same time; further ones get memory of their own."""

    def __init__(self, slots: int = 256) -> None:
        # `SlotPool.take` is for one thread at a time. Slots come back without the lock: appending to a deque is atomic.
        self._lock = threading.Lock()
        self._slots = SlotPool(Slot, slots)

    def take(self, nbytes: int) -> np.ndarray:
        """Lends uint8 [nbytes], writable and uninitialised."""
        with self._lock:
            slot = self._slots.take()
        if slot is None:
            return np.empty(nbytes, dtype=np.uint8)
        return self._slots.lend_room(slot, nbytes)

    def close(self) -> None:
        self._slots.close()


def keep_freed_memory() -> None:
    """Lets malloc keep memory that is free instead of handing it back to the system: gRPC frees and takes some MB for each
    piece of a body. Without this, 80,000 to 170,000 pages per GB were faulted in anew, a quarter of the CPU time of
    receiving.

    This holds for the whole process. glibc does so by itself in any process that frees a large array: from then on arrays up
    to that size (32 MB at most) lie in malloc's arenas, each of which may keep twice that size at its end. An array of 31 MB
    is freed here; its pages are never touched. Settings of malloc in the environment (``MALLOC_TRIM_THRESHOLD_``) prevail.
    """
    np.empty(31 << 20, dtype=np.uint8)
