"""Headers and arrays: what may travel, and what is refused."""

from __future__ import annotations

import json
import math
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from glt_lightning.sampling import Draft
from glt_lightning.sampling.sample import Field
from glt_lightning.workers import DTYPES, Message
from glt_lightning.workers.transport import frame
from glt_lightning.workers.transport.frame import Kind
from glt_lightning.workers.transport.message import (
    EMPTY,
    MOST_ARRAYS,
    MOST_HEADER,
    WireError,
    decode_header,
    encode_header,
    layout_entries,
    pack,
)
from tests.helpers.examples import examples

_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(), values, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), _json, max_size=5))
def test_headers_come_back(header: dict[str, object]) -> None:
    try:
        data = encode_header(header)
        found = decode_header(data)
    except WireError as error:
        assert "nested" in str(error)  # noqa: PT017 - what else may be refused is below
    else:
        assert found == json.loads(json.dumps(header).encode("utf-8", "replace"))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    with suppress(WireError):
        assert isinstance(decode_header(data), dict)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "cannot be read as JSON"),
        (b"\xff{}", "cannot be read as JSON"),
        (b"[]", "expected an object"),
        (b"null", "expected an object"),
        (b'{"a":NaN}', "NaN is not allowed"),
        (b'{"a":-Infinity}', "-Infinity is not allowed"),
        (b'{"a":1e999}', "beyond the range of float64"),
        (b'{"a":' + b"9" * 5000 + b"}", "5000 digits"),
        (b'{"a":' + b"[" * 30_000 + b"]" * 30_000 + b"}", "cannot be read as JSON|nested"),
        (b'{"a":' + b"[" * 17 + b"]" * 17 + b"}", "nested deeper than 16"),
        (b'{"a":' * 60 + b"1" + b"}" * 60, "nested deeper than 16"),
        (b'{"a":"\\ud800"}', "half a surrogate pair"),
        (b'{"\\udfff":1}', "half a surrogate pair"),
        (b'{"a":1' + b" " * MOST_HEADER + b"}", f"at most {MOST_HEADER}"),
        (b'{"a":1}x', "cannot be read as JSON"),
    ],
)
def test_a_header_that_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(WireError, match=said):
        decode_header(data)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1}, b"bytes", np.int64(1), object()])
def test_values_that_do_not_travel(value: object) -> None:
    with pytest.raises(WireError, match="expected strings, integers"):
        encode_header({"a": value})


def test_a_path_that_is_no_utf8_still_travels() -> None:
    assert decode_header(encode_header({"path": "a\udcff"})) == {"path": "a?"}


_shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@given(st.dictionaries(st.text(max_size=20), st.tuples(st.sampled_from(DTYPES), _shapes), max_size=6))
def test_arrays_come_back(kinds: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    arrays = {
        name: np.frombuffer(np.random.default_rng(3).bytes(math.prod(shape) * 8), dtype=np.uint8)[
            : math.prod(shape) * np.dtype(dtype).itemsize
        ]
        .view(dtype)
        .reshape(shape)
        for name, (dtype, shape) in kinds.items()
    }
    entries, body = pack(arrays)
    assert all(entry[3] % 64 == 0 for entry in entries)
    found = Message(json.loads(json.dumps({"arrays": entries})), body).arrays()
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def test_arrays_of_any_strides_are_packed() -> None:
    array = np.arange(24, dtype=np.int64).reshape(4, 6)[::2, ::-1]
    entries, body = pack({"a": array, "scalar": np.array(3, dtype=np.int8)})
    found = Message({"arrays": entries}, body).arrays()
    assert np.array_equal(found["a"], array)
    assert found["scalar"] == 3
    assert found["scalar"].shape == ()
    assert not body[12 * 8 : 128].any()  # gaps hold nothing of what was there


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.array([object()]), np.zeros(2, ">i4"), np.zeros(2, "c8"), np.zeros(2, "M8[s]")]
)
def test_dtypes_that_do_not_travel(array: np.ndarray) -> None:
    with pytest.raises(WireError, match="cannot be sent"):
        pack({"a": array})


def test_a_draft_travels_without_a_copy() -> None:
    draft = Draft(
        [
            Field("x", np.dtype("<f4"), (3, 2), lambda out: out.fill(7)),
            Field("n", np.dtype("<i8"), (5,), lambda out: out.fill(1)),
        ]
    )
    memory = np.zeros(draft.nbytes, dtype=np.uint8)
    draft.write(memory)
    found = Message({"arrays": layout_entries(draft.layout)}, memory).arrays()
    assert found["x"].shape == (3, 2)
    assert np.shares_memory(found["x"], memory)
    np.testing.assert_array_equal(found["x"], 7)


def test_no_arrays() -> None:
    assert Message({}).arrays() == {}
    assert Message({"arrays": []}, EMPTY).arrays() == {}


GOOD = ["a", "<i4", [2], 0]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({}, "a list of at most"),
        ([GOOD] * (MOST_ARRAYS + 1), "a list of at most"),
        ([None], "expected \\[name"),
        ([["a", "<i4", [2]]], "expected \\[name"),
        ([[1, "<i4", [2], 0]], "a name of at most"),
        ([["a" * 201, "<i4", [2], 0]], "a name of at most"),
        ([["a", "O", [2], 0]], "expected one of"),
        ([["a", "|O8", [2], 0]], "expected one of"),
        ([["a", ">i4", [2], 0]], "expected one of"),
        ([["a", "V4", [2], 0]], "expected one of"),
        ([["a", ["<i4"], [2], 0]], "expected one of"),
        ([["a", "<f16", [1], 0]], "expected one of"),
        ([["a", "<i4", 2, 0]], "counts"),
        ([["a", "<i4", [-1], 0]], "counts"),
        ([["a", "<i4", [True], 0]], "counts"),
        ([["a", "<i4", [2.0], 0]], "counts"),
        ([["a", "<i4", [1] * 9, 0]], "counts"),
        ([["a", "<i4", [17], 0]], "exceed the body of 64"),
        ([["a", "<i4", [16], 0], ["b", "<i4", [1], 0]], "68 bytes in a body of 64; entries may not overlap"),
        ([["a", "<i4", [2**62, 4], 0]], "too large"),
        ([["a", "<i4", [2**40, 2**40, 0], 0]], "too large"),
        ([["a", "|i1", [2**63], 0]], "too large"),
        ([["a", "<i4", [2], -4]], "exceed the body"),
        ([["a", "<i4", [2], 2]], "exceed the body"),
        ([["a", "<i4", [2], 60]], "exceed the body"),
        ([["a", "<i4", [0], 68]], "exceed the body"),
        ([["a", "<i4", [2], 2**70]], "exceed the body"),
        ([["a", "<i4", [2], "0"]], "exceed the body"),
        ([GOOD, GOOD], "twice"),
    ],
)
def test_a_layout_that_is_refused(arrays: object, said: str) -> None:
    with pytest.raises(WireError, match=said):
        Message({"arrays": arrays}, np.zeros(64, dtype=np.uint8)).arrays()


_hostile = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([*DTYPES, "a"]),
    lambda values: st.lists(values, max_size=5),
    max_leaves=12,
)
_entries = st.lists(
    st.tuples(
        st.text(max_size=3) | _hostile,
        st.sampled_from(DTYPES) | _hostile,
        st.lists(st.integers(0, 2**65) | st.integers(0, 9), max_size=10) | _hostile,
        st.integers(0, 200) | _hostile,
    ).map(list)
    | _hostile,
    max_size=4,
)


@settings(max_examples=examples(300))
@given(_entries | _hostile, st.integers(0, 200))
def test_any_layout_lies_in_the_body_or_is_refused(arrays: object, nbytes: int) -> None:
    body = np.zeros(nbytes, dtype=np.uint8)
    try:
        found = Message({"arrays": arrays}, body).arrays()
    except WireError:
        return
    for array in found.values():
        assert array.nbytes <= nbytes
        assert array.nbytes == 0 or np.shares_memory(array, body)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_refused(data: bytes) -> None:
    try:
        found = frame.decode(data)
    except WireError:
        return
    assert len(found.header) + len(found.inline) + frame.PREFIX_BYTES == len(data)


@given(
    st.sampled_from(Kind),
    st.integers(0, 2**64 - 1),
    st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=3),
    st.binary(max_size=64),
)
def test_frames_come_back(kind: Kind, id_: int, header: dict[str, int], inline: bytes) -> None:
    data = frame.encode(kind, id_, header, np.frombuffer(inline, dtype=np.uint8))
    found = frame.decode(data)
    assert (found.kind, found.id, found.decode(), found.inline.tobytes()) == (kind, id_, header, inline)
    padded = frame.decode(frame.encode_padded(kind, id_, header, lambda length: -length % 16))
    assert (found.kind, found.id, padded.decode()) == (kind, id_, header)


@given(st.data())
def test_a_damaged_frame_is_refused_or_read(data: st.DataObject) -> None:
    good = bytearray(
        frame.encode(Kind.REQUEST, 7, {"op": "echo", "header": {"arrays": [GOOD]}}, np.zeros(8, dtype=np.uint8))
    )
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with suppress(WireError):
        found = frame.decode(bytes(good[: data.draw(st.integers(0, len(good)))]))
        header = found.decode().get("header")
        if isinstance(header, dict):
            Message(header, found.inline).arrays()


def test_nothing_larger_than_the_input_is_taken() -> None:
    bombs = [
        b'{"a":' + b"[" * 32_000,
        b'{"a":' + b"[[]," * 10_000,
        b'{"arrays":[["a","<f8",[4294967296,4294967296],0]]}',
        b'{"arrays":[["a","<f8",[268435456],0]]}',
        b'{"a":"' + b"\\u0000" * 10_000 + b'"}',
        b'{"a":' + b"1" * 60_000 + b"}",
    ]
    for data in bombs:
        tracemalloc.start()
        with suppress(WireError):
            Message(decode_header(data), EMPTY).arrays()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 << 20
