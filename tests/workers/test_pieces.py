"""Large bodies travel in pieces and are put together in recycled memory."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from glt_lightning.workers.transport.flight_common import Assembler, chunk, chunks, open_chunk
from glt_lightning.workers.transport.frame import Kind, encode
from glt_lightning.workers.transport.message import EMPTY, Recycler, WireError

PIECE = 2 << 20


def sent(body, id_=3):
    """What arrives of a reply."""
    made = chunks(Kind.REPLY, id_, {"a": 1}, body)
    return [SimpleNamespace(data=batch, app_metadata=frame) for batch, frame in made]


@pytest.mark.parametrize("nbytes", [0, 1, 20_000, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 17])
def test_a_body_arrives(nbytes):
    body = np.random.default_rng(nbytes).integers(0, 255, nbytes, dtype=np.uint8)
    pieces = sent(body)
    assert len(pieces) == max(1, -(-nbytes // PIECE))
    assembler = Assembler(Recycler())
    *first, last = [assembler.open(piece) for piece in pieces]
    assert first == [None] * len(first)
    frame, found = last
    assert (frame.kind, frame.id, frame.decode()) == (Kind.REPLY, 3, {"a": 1})
    assert found.tobytes() == body.tobytes()
    assert found.flags.writeable
    assert found.ctypes.data % 8 == 0


def test_pieces_of_two_replies_may_alternate():
    bodies = [np.full(2 * PIECE + i, i, dtype=np.uint8) for i in (1, 2)]
    assembler = Assembler(Recycler())
    found = {}
    for pair in zip(*(sent(body, id_) for id_, body in enumerate(bodies)), strict=True):
        for piece in pair:
            if (arrived := assembler.open(piece)) is not None:
                found[arrived[0].id] = arrived[1]
    assert [found[id_].tobytes() == body.tobytes() for id_, body in enumerate(bodies)] == [True, True]


def test_memory_is_used_again_when_nobody_views_it():
    assembler, body = Assembler(Recycler()), np.zeros(2 * PIECE, dtype=np.uint8)

    def address():
        found = [assembler.open(piece) for piece in sent(body)][-1]
        return found[1].ctypes.data, found[1][5:6]

    first, view = address()
    second, _ = address()
    assert second != first  # a view of the first is held
    del view
    assert address()[0] in (first, second)


def test_bodies_that_contradict_themselves_are_refused():
    body = np.zeros(2 * PIECE + 5, dtype=np.uint8)
    first, second, last = sent(body)
    for order in ((first, last), (first, second, second), (first, second, first, last)):
        assembler = Assembler(Recycler())
        with pytest.raises(WireError, match="body"):
            for piece in order:
                assembler.open(piece)


@pytest.mark.parametrize("total", [None, -1, True, "9", 1 << 40, 2.5])
def test_a_piece_of_a_body_of_no_size(total):
    piece = SimpleNamespace(
        data=sent(np.zeros(2 * PIECE, np.uint8))[0].data, app_metadata=encode(Kind.PART, 1, {"bytes": total})
    )
    with pytest.raises(WireError, match="a piece of"):
        Assembler(Recycler()).open(piece)


def test_not_too_many_bodies_are_begun():
    assembler = Assembler(Recycler())
    with pytest.raises(WireError, match="64 bodies"):
        for id_ in range(65):
            assembler.open(SimpleNamespace(data=None, app_metadata=encode(Kind.PART, id_, {"bytes": 10}, EMPTY)))


@pytest.mark.parametrize(("wire_bytes", "refused"), [(20_100, False), (90_000, False), (19_999, True)])
def test_a_body_that_is_longer_than_its_message_was_compressed(wire_bytes, refused):
    """Wherever its memory lies: Arrow may copy a body that was sent as it is."""
    body = np.ones(20_000, dtype=np.uint8)
    batch, frame = chunk(Kind.REPLY, 3, {}, body)
    wire = pa.py_buffer(frame + bytes(wire_bytes - len(frame)))
    received = SimpleNamespace(data=batch, app_metadata=wire.slice(0, len(frame)))
    if refused:
        with pytest.raises(WireError, match="a compressed body, of 20000 bytes"):
            open_chunk(received)
    else:
        assert open_chunk(received)[1].tobytes() == body.tobytes()
