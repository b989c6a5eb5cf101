"""Where the processes of a script meet, and what a server calls for its clients."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import torch

from glt_lightning.base import DeadlineOptions, OptionError, PeerError, RemoteError
from glt_lightning.compat.glt.distributed import client
from glt_lightning.compat.glt.distributed.calls import CallTable, from_message, name_of, to_message
from glt_lightning.compat.glt.distributed.meeting import Group, MeetingPoint, ask_round, say_gone
from glt_lightning.compat.glt.distributed.server import free_address
from glt_lightning.workers import Link, Message, Peer
from tests.helpers.owners import CALLER

DEADLINES = DeadlineOptions(connect_s=2, call_s=5, reconnect_s=0.1)


def link(name: str) -> Link:
    return Link(job="", role="tool", name=name, deadlines=DEADLINES)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def meeting_point(stack: ExitStack) -> tuple[MeetingPoint, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    point = MeetingPoint(link("the first"), address)
    stack.callback(point.close, 0.0)
    return point, address


def peer(stack: ExitStack, name: str, address: str) -> Peer:
    found = link(name).peer("the meeting point", [address], link(name).open_transport())
    stack.callback(found.close)
    return found


def together(*bodies: Callable[[], Any]) -> list[Any]:
    """What they return, each on a thread of its own."""
    found: list[Any] = [None] * len(bodies)

    def run(number: int) -> None:
        try:
            found[number] = bodies[number]()
        except PeerError as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def test_all_get_the_texts_of_all(stack: ExitStack) -> None:
    _, address = meeting_point(stack)
    groups = [Group("g", rank, 2, peer(stack, f"rank {rank}", address), 20, 20) for rank in range(2)]
    for number in range(7):  # more rounds than are kept
        texts = [f"{number}: one", f"{number}: zwölf"]
        assert together(*(partial(group.exchange, texts[group.rank]) for group in groups)) == [texts, texts]
    assert together(*(partial(group.gather_counts, 10 + group.rank) for group in groups)) == [[10, 11], [10, 11]]
    reader = peer(stack, "a reader", address)
    assert ask_round(reader, "g", 6, -1, 2, "", 5) == texts
    assert ask_round(reader, "g", 0, -1, 2, "", 5) == ["0: one", "0: zwölf"]


def test_a_missing_member_is_named_at_the_deadline(stack: ExitStack) -> None:
    _, address = meeting_point(stack)
    group = Group("g", 0, 3, peer(stack, "rank 0", address), 20, 0.1)
    with pytest.raises(PeerError, match=r"rank 1, 2 of g did not come within 0\.1 s"):
        group.exchange("")
    with pytest.raises(RemoteError, match="rank 1 is rank 1 of 2, other processes are of 3"):
        Group("g", 1, 2, peer(stack, "rank 1", address), 20, 20).exchange("")
    with pytest.raises(OptionError, match="at most 1048576"):
        group.exchange("x" * (1 << 21))


def test_nobody_listens(stack: ExitStack) -> None:
    with pytest.raises(PeerError, match=r"nobody answered for g within 0\.1 s"):
        Group("g", 0, 2, peer(stack, "rank 0", "127.0.0.1:9"), 20, 0.1).exchange("")


def test_a_meeting_point_that_is_started_again_hears_all_again(stack: ExitStack) -> None:
    point, address = meeting_point(stack)
    waiting = Group("g", 0, 2, peer(stack, "rank 0", address), 20, 20)

    def restart() -> list[str]:
        point.close(0.0)
        again = MeetingPoint(link("the first again"), address)
        stack.callback(again.close, 0.0)
        return Group("g", 1, 2, peer(stack, "rank 1", address), 20, 20).exchange("b")

    assert together(lambda: waiting.exchange("a"), restart) == [["a", "b"], ["a", "b"]]


def test_it_waits_for_last_words(stack: ExitStack) -> None:
    point, address = meeting_point(stack)
    one = peer(stack, "rank 1", address)
    assert ask_round(one, "g", 0, 0, 1, "a", 5) == ["a"]
    closing = threading.Thread(target=point.close, args=(20.0,))
    closing.start()
    say_gone(link("rank 1"), address)
    closing.join(10)
    assert not closing.is_alive()
    say_gone(link("rank 1"), address)  # it has ended: no error


def test_requests_know_a_fixed_table() -> None:
    values = {"a": [1, "b", None, {"c": torch.arange(3)}], "d": torch.ones(2, 2), "e": 0.5}
    sent = to_message(values)
    back = from_message(Message(sent.header, sent.body))
    assert torch.equal(back["a"][3]["c"], torch.arange(3))
    assert torch.equal(back["d"], torch.ones(2, 2))
    assert (back["a"][:3], back["e"]) == ([1, "b", None], 0.5)
    with pytest.raises(OptionError, match="got object"):
        to_message({"a": object()})
    assert name_of(torch.cuda.device_count) == "torch.cuda.device_count"
    assert name_of("DistServer.get_node_split") == "DistServer.get_node_split"
    table = CallTable({"f": lambda a, b=2: a + b})

    def call(func: str, *args: Any, **kwargs: Any) -> Any:
        return from_message(table(to_message({"func": func, "args": args, "kwargs": kwargs}), CALLER))["value"]

    assert (call("f", 1), call("f", 1, b=5)) == (3, 6)
    assert torch.equal(call("f", torch.arange(2)), torch.arange(2) + 2)
    for func, args, wrong in (
        ("os.system", ("true",), "calls no 'os.system'"),
        ("f", (), "f: missing a required argument: 'a'."),
    ):
        with pytest.raises(ValueError, match=re.escape(wrong)):
            call(func, *args)
    sent = to_message({"func": "g", "args": [torch.arange(2)], "kwargs": {}})
    found = from_message(CallTable({"g": lambda a: a.data_ptr()})(sent, CALLER))["value"]
    assert found == sent.body.ctypes.data  # not copied before memory is reserved
    with pytest.raises(TypeError, match="can only concatenate str"):  # of the function itself, not of how it is called
        call("f", "x")


def test_a_server_finds_its_address_again() -> None:
    assert (
        free_address("127.0.0.1", "a:1/0") == free_address("127.0.0.1", "a:1/0") != free_address("127.0.0.1", "a:1/1")
    )
    taken = free_address("127.0.0.1", "a:1/0")
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(taken.rpartition(":")[2])))
        assert free_address("127.0.0.1", "a:1/0") != taken
    with pytest.raises(OptionError, match="is an address of this host"):
        free_address("192.0.2.1", "a:1/0")


def test_labels_that_come_in_pieces_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server answers the first nodes of a call; the client asks for the others, and says where a server sends nothing."""
    sizes: list[int] = []

    def request(_number: int, name: str, *given: Any) -> Any:
        if not given:
            return ["node"]
        sizes.append(len(given[1]))
        return given[1][: most[0]] * 2

    monkeypatch.setattr(client, "request_server", request)
    look_up, labelled = client.remote_labels(0)
    assert labelled == {"node"}
    most = [4]
    assert look_up("node", torch.arange(10)).tolist() == list(range(0, 20, 2))
    assert sizes == [10, 6, 2]
    assert look_up("node", torch.arange(0)).tolist() == []
    most = [0]
    with pytest.raises(PeerError, match="its answer has 0 labels of 10, and no more"):
        look_up("node", torch.arange(10))
