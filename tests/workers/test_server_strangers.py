"""Whatever a client says to a graph server: it answers, refuses, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from glt_lightning.base import PeerError, RemoteError
from glt_lightning.sampling import BatchRequest, SamplerConfig
from glt_lightning.workers import Message, Peer
from glt_lightning.workers.server.question import Question
from glt_lightning.workers.server.server import GraphServer
from glt_lightning.workers.transport.message import pack
from tests.helpers.examples import examples
from tests.helpers.partitions import partitioned, small_hetero
from tests.helpers.servers import open_farm

CONFIG = SamplerConfig(1, ((3, 2), (2, 2)))
PAPERS = range(80, 280)  # their numbers in the partition
ID = "s" * 20
FIELDS = ["session", "talk", "run", "number", "key", "config", "arrays", "max_restarts", "timeout_s", "place"]
REFUSALS = {"", "DataError", "SessionLostError", "WireError"}

scalars = st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats(allow_nan=False, allow_infinity=False)
scalars |= st.text(max_size=30) | st.just(ID)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
many = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return partitioned(small_hetero(), tmp_path_factory.mktemp("graph"), 2)


@pytest.fixture
def place(whole) -> Iterator[tuple[GraphServer, Callable[[], Peer]]]:
    """A server, which must work as well in the end as in the beginning, and what makes a peer of it."""
    with open_farm("in process") as farm:
        server = farm.serve(whole)
        yield server, lambda: farm.peer(server.address)
        producer = farm.producer(farm.peer(server.address))
        requests = iter([BatchRequest(3, 5, np.arange(80, 90), np.arange(10))])
        assert [sample.number for sample in producer.stream(CONFIG, requests)] == [3]
        assert server.status()["samplers"]["restarts"] == 0


def question() -> Message:
    return Question(1, CONFIG, BatchRequest(0, 5, np.arange(80, 90), np.arange(10))).to_message(ID, 1)


def refusal(peer: Peer, op: str, header: Mapping[str, Any], body: np.ndarray) -> str:
    """The kind of error with which a call is refused; empty if it is not, or cannot even be sent."""
    try:
        peer.ask(op, header, body).result()
    except RemoteError as error:
        return error.kind
    except PeerError:
        pass
    return ""


@contextmanager
def session(make_peer: Callable[[], Peer]) -> Iterator[Peer]:
    peer = make_peer()
    peer.ask("open", {"session": ID, "max_restarts": 1, "timeout_s": 60}).result()
    yield peer
    peer.ask("close", {"session": ID}).result()
    peer.close()


@many
@given(
    op=st.sampled_from(["open", "make", "drop", "renew", "close"]),
    header=st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), values, max_size=8),
    body=st.binary(max_size=200),
)
def test_any_header(place, op, header, body):
    server, make_peer = place
    peer = make_peer()
    assert refusal(peer, op, header, np.frombuffer(body, dtype=np.uint8)) in REFUSALS
    peer.close()
    assert server.status()["num_clients"] <= 2


@many
@given(
    field=st.sampled_from(FIELDS[:7]),
    inner=st.sampled_from([None, "seed_type", "fanouts", "replace", "threads"]),
    value=values,
)
def test_a_question_with_one_wrong_field(place, field, inner, value):
    message = question()
    header = dict(message.header)
    if inner is None:
        header[field] = value
    else:
        header["config"] = {**header["config"], inner: value}
    with session(place[1]) as peer:
        assert refusal(peer, "make", header, message.body) in REFUSALS


@many
@given(
    seeds=st.lists(st.sampled_from(PAPERS) | st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300), max_size=8),
    dtype=st.sampled_from(["<i8", "<i8", "<u8", "<i4", "|b1"]),
    shape=st.sampled_from([(-1,), (-1,), (-1, 1), (1, -1)]),
)
def test_any_seeds(place, seeds, dtype, shape):
    array = np.array(seeds, dtype=np.int64).astype(dtype).reshape(shape)
    arrays, body = pack({"seeds": array, "input_id": array})
    good = dtype == "<i8" and shape == (-1,) and all(seed in PAPERS for seed in seeds)
    with session(place[1]) as peer:
        assert refusal(peer, "make", {**question().header, "arrays": arrays}, body) == ("" if good else "DataError")
