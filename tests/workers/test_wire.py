"""Messages between a rank and its samplers."""

import os
import socket

import pytest

from glt_lightning.workers.slots import ClosedError, receive, send


@pytest.fixture
def ends():
    a, b = socket.socketpair()
    a.settimeout(5)
    b.settimeout(5)
    with a, b:
        yield a, b


def test_header_body_and_descriptor(ends):
    a, b = ends
    fd = os.memfd_create("test")
    os.write(fd, b"hello")
    send(a, {"op": "make", "key": 2**64 - 1}, b"\x00\x01", [fd])
    send(a, {"op": "drop"})
    os.close(fd)
    header, body, fds = receive(b)
    assert header == {"op": "make", "key": 2**64 - 1}
    assert body == b"\x00\x01"
    assert os.pread(fds[0], 5, 0) == b"hello"
    os.close(fds[0])
    assert receive(b) == ({"op": "drop"}, b"", [])


def test_the_end_is_an_error_that_callers_expect(ends):
    a, b = ends
    a.sendall(b"\x05\x00")
    a.close()
    with pytest.raises(ClosedError):
        receive(b)
    with pytest.raises(ClosedError):
        receive(b)
    with pytest.raises(ClosedError):
        send(b, {"op": "x"})


def test_silence_has_a_deadline(ends):
    _, b = ends
    b.settimeout(0.05)
    with pytest.raises(TimeoutError):
        receive(b)


def test_an_absurd_length_is_refused_before_memory_is_taken(ends):
    a, b = ends
    a.sendall(b"\xff\xff\xff\xff\xff\xff\xff\xff")
    with pytest.raises(ClosedError, match="frame"):
        receive(b)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"\x05\x00", ClosedError),  # the sender died
        (b"\x05\x00\x00\x00\x00\x00\x00\x00{}", ClosedError),
        (b"\x02\x00\x00\x00\x00\x00\x00\x00{]", ValueError),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff", ClosedError),
    ],
)
def test_descriptors_of_a_message_that_does_not_come_whole_are_closed(ends, sent, error):
    a, b = ends
    fd = os.memfd_create("test")
    socket.send_fds(a, [sent[:1]], [fd])
    a.sendall(sent[1:])
    a.close()
    os.close(fd)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(error):
        receive(b)
    assert len(os.listdir("/proc/self/fd")) == len(before)
