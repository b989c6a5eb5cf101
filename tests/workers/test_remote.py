"""A client of a graph server, whatever happens to the server and to the network."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

from glt_lightning.base import DataError, PeerLostError, RefusedError, RemoteError, SamplerError, SamplingOptions
from glt_lightning.kernels import ExcludedEdges
from glt_lightning.loader import LoaderSpec
from glt_lightning.sampling import BatchRequest, SamplerConfig
from glt_lightning.workers import Link, Message
from glt_lightning.workers.server.question import Question, read_question
from tests.helpers.contents import Contents, contents
from tests.helpers.in_process import InProcessNetwork
from tests.helpers.network_faults import Faults
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.servers import Farm, contents_of, inline, open_farm, until

SPEC = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=4, shuffle=True)
OTHER = LoaderSpec(name="val", split="val", num_neighbors=[2], batch_size=4)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return partitioned(small_graph(), tmp_path_factory.mktemp("graph"), 2)


@pytest.fixture
def network() -> Iterator[InProcessNetwork]:
    with InProcessNetwork() as network:
        yield network


@pytest.fixture
def farm(network) -> Iterator[Farm]:
    farm = Farm(network)
    try:
        yield farm
    finally:
        farm.close()


@pytest.fixture(params=["in process", "flight", "handover"])
def any_farm(request) -> Iterator[Farm]:
    with open_farm(request.param) as farm:
        yield farm


def test_a_batch_without_seeds_comes_from_a_server_too(any_farm, whole):
    place = {"rank": 2, "world_size": 3}
    spec = LoaderSpec(name="val", seeds=np.array([5, 7]), num_neighbors=[4, 3], batch_size=4, exact=True)
    context = any_farm.context(any_farm.serve(whole).address, **place)
    assert contents_of(context, spec) == inline(whole, spec, **place)


@pytest.mark.diagonal
@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize(
    "faults",
    [
        Faults(seed=1, delay_s=(0.0, 0.01), reorder=0.5),
        Faults(seed=2, duplicate=0.5),
        Faults(seed=3, lose_request=0.1, lose_reply=0.1),
        Faults(seed=4, cut_stream=0.2),
        Faults(
            seed=5,
            delay_s=(0.0, 0.005),
            reorder=0.3,
            duplicate=0.2,
            lose_request=0.03,
            lose_reply=0.03,
            cut_stream=0.05,
        ),
    ],
    ids=["late", "twice", "lost", "cut", "all"],
)
def test_same_batches_over_a_bad_network(farm, network, tmp_path, make, faults):
    graph = partitioned(make(), tmp_path, 2, undirected=True)
    server = farm.serve(graph)
    network.faults = faults
    context = farm.context(server.address, peer={"call_s": 0.3}, sampling=SamplingOptions(with_edge=True))
    assert contents_of(context, SPEC) == inline(graph, SPEC, sampling={"with_edge": True})


@pytest.mark.diagonal(most=1)
def test_runs_at_the_same_time(any_farm, whole):
    """A validation loop in the middle of an epoch, and an epoch that is left early."""
    context = any_farm.context(any_farm.serve(whole).address, prefetch=3)
    train, val = context.make_loader(SPEC), context.make_loader(OTHER)
    found: list[Contents] = []
    for number, batch in enumerate(train):
        found.append(contents(batch))
        val.set_epoch(0)
        if number % 5 == 2:
            assert [contents(b) for b in val] == inline(whole, OTHER)
        if number % 5 == 3:
            for early, _ in enumerate(val):
                if early == 1:
                    break
    assert found == inline(whole, SPEC)


def test_kept_batches_keep_their_values(any_farm, whole):
    context = any_farm.context(any_farm.serve(whole).address)
    kept = list(context.make_loader(SPEC))
    assert [contents(batch) for batch in kept] == inline(whole, SPEC)


def test_pinned_memory(any_farm, whole):
    pinned: list[int] = []

    def pin(_address: int, nbytes: int):
        pinned.append(nbytes)
        return lambda: pinned.remove(nbytes)

    server = any_farm.serve(whole)
    producer = any_farm.producer(any_farm.peer(server.address), pin=pin)
    config = SamplerConfig(0, ((3,),))
    requests = [BatchRequest(n, n, np.arange(n, n + 4), np.arange(4)) for n in range(9)]
    first = [next(producer.stream(config, iter(requests[n:]))).arrays["input_id"].tolist() for n in range(9)]
    assert first == [[0, 1, 2, 3]] * 9
    assert pinned
    producer.close()
    assert pinned == []


def test_the_server_is_restarted(any_farm, whole):
    """At the same address, in the middle of an epoch: the client notices nothing but a pause."""
    servers = [any_farm.serve(whole)]
    context = any_farm.context(servers[0].address)
    found = []
    for number, batch in enumerate(context.make_loader(SPEC)):
        found.append(contents(batch))
        if number in (2, 9):
            servers[-1].close()
            servers.append(any_farm.serve(whole, servers[0].address))
    assert found == inline(whole, SPEC)


@pytest.mark.parametrize("handover", [False, True])
def test_the_lease_ended_while_the_client_was_cut_off(farm, network, whole, handover):
    farm.handover = handover
    server = farm.serve(whole, deadlines=farm.deadlines(lease_s=0.3))
    context = farm.context(server.address, peer={"call_s": 0.5})
    found = []
    for number, batch in enumerate(context.make_loader(SPEC)):
        found.append(contents(batch))
        if number == 3:
            network.cut(server.address, silent=True)
            until(lambda: not server.status()["clients"])
            network.heal(server.address)
    assert found == inline(whole, SPEC)


def test_a_server_that_stays_away_is_named_and_asked_again(any_farm, whole):
    server = any_farm.serve(whole)
    context = any_farm.context(server.address, peer={"call_s": 1, "connect_s": 1, "reconnect_s": 0.5})
    batches = iter(context.make_loader(SPEC))
    next(batches)
    server.close()
    with pytest.raises(PeerLostError, match=r"server 0 .*reconnect_s"):
        list(batches)
    for _ in range(2):  # and again whoever asks
        with pytest.raises(PeerLostError, match="server 0"):
            list(context.make_loader(OTHER))
    any_farm.serve(whole, server.address)
    assert contents_of(context, OTHER, SPEC) == inline(whole, OTHER, SPEC)


def test_a_server_that_hangs_is_named(farm, network, whole):
    server = farm.serve(whole)
    context = farm.context(server.address, peer={"call_s": 0.2, "connect_s": 0.2, "reconnect_s": 0.5})
    batches = iter(context.make_loader(SPEC))
    next(batches)
    network.cut(server.address, silent=True)
    with pytest.raises(PeerLostError, match=r"server 0 .*reconnect_s"):
        list(batches)


def test_a_batch_that_does_not_come_is_named(farm, whole):
    server = farm.serve(whole)
    context = farm.context(server.address)
    batches = iter(context.make_loader(SPEC))
    next(batches)
    os.kill(server.status()["samplers"]["pids"][0], signal.SIGSTOP)
    context._producer._client_session._timeout_s = 0.5  # the first batch may take longer on a busy machine
    with pytest.raises(SamplerError, match=r"server 0: no answer with batch \d+ within sampling.timeout_s = 0.5 s"):
        list(batches)
    os.kill(server.status()["samplers"]["pids"][0], signal.SIGCONT)


def test_a_server_with_another_partition_after_a_restart(farm, whole, tmp_path):
    server = farm.serve(whole)
    graph = whole.manifest.options_hash
    peer = Link(job="test", role="client", name="c", graph=graph).peer("server 0", [server.address], farm.transport)
    producer = farm.producer(peer)
    config = SamplerConfig(0, ((3,),))
    batches = producer.stream(config, (BatchRequest(n, n, np.arange(4), np.arange(4)) for n in range(100)))
    next(batches)
    server.close()
    farm.serve(partitioned(small_graph(200), tmp_path, 1), server.address)
    try:
        with pytest.raises(RefusedError, match="different partitions: options_hash"):
            list(batches)
    finally:
        producer.close()
        peer.close()


def test_a_sampler_is_killed(any_farm, whole):
    server = any_farm.serve(whole, num_workers=2)
    context = any_farm.context(server.address)
    found = []
    for number, batch in enumerate(context.make_loader(SPEC)):
        found.append(contents(batch))
        if number in (3, 6):
            os.kill(server.status()["samplers"]["pids"][number % 2], signal.SIGKILL)
            until(lambda n=number: server.status()["samplers"]["restarts"] == n // 3)
    assert found == inline(whole, SPEC)


BAD_QUESTIONS = [
    (SamplerConfig(0, ((3,),)), [0, 300], "seeds: 300 at position 1 is no node of type 'node'"),
    (SamplerConfig(0, ((3,),)), [-1], "seeds: -1 at position 0"),
    (SamplerConfig(0, ((3, 3),)), [0], "fanouts: expected 1 integers per hop"),
    (SamplerConfig(0, ((-2,),)), [0], "fanouts: expected 1 integers per hop"),
    (SamplerConfig(0, ((1,),) * 17), [0], "fanouts: expected a list of at most 16 hops"),
    (SamplerConfig(1, ((3,),)), [0], "seed_type: expected an integer from 0 to 0"),
    (SamplerConfig(0, ((3,),), threads=(1 << 16) + 1), [0], "threads: expected an integer from 1"),
    (SamplerConfig(0, ((3,),), replace=1), [0], "replace: expected true or false"),  # type: ignore[arg-type]
]


def test_bad_questions_are_refused_and_harm_nobody(farm, whole):
    """One after each batch of an epoch."""
    server = farm.serve(whole)
    context = farm.context(server.address)
    bad = farm.producer(farm.peer(server.address))
    found, questions = [], iter(BAD_QUESTIONS)
    for batch in context.make_loader(SPEC):
        found.append(contents(batch))
        for config, seeds, reason in itertools.islice(questions, 1):
            requests = iter([BatchRequest(7, 0, np.array(seeds), np.arange(len(seeds)))])
            with pytest.raises(RemoteError) as caught:
                next(bad.stream(config, requests))
            assert reason in str(caught.value)
            assert str(caught.value).startswith("server 0: ")
    assert list(questions) == []
    assert found == inline(whole, SPEC)
    assert server.status()["samplers"]["restarts"] == 0


@pytest.mark.parametrize(("channel_size", "most"), [(1, 2), (1 << 30, 8)])
def test_bytes_limit_what_a_client_has_in_flight(farm, whole, channel_size, most):
    """Two batches at least; else as many as have room, up to ``prefetch``."""
    peer = farm.peer(farm.serve(whole).address)
    producer = farm.producer(peer, SamplingOptions(channel_size=channel_size), prefetch=8)
    asked = []

    def requests() -> Iterator[BatchRequest]:
        for number in range(30):
            asked.append(number)
            yield BatchRequest(number, number, np.arange(4), np.arange(4))

    ahead = [len(asked) - 1 - sample.number for sample in producer.stream(SamplerConfig(0, ((3,),)), requests())]
    assert len(ahead) == 30
    assert set(ahead[: 30 - most]) == {most}


@pytest.mark.parametrize("change", ["another field", "no field", "floats", "two lengths", "a matrix"])
def test_a_malformed_question_is_refused(farm, whole, change):
    server = farm.serve(whole)
    peer = farm.peer(server.address)
    seeds, input_id = np.arange(4), np.arange(4)
    if change == "floats":
        seeds = seeds.astype(np.float64)
    if change == "two lengths":
        input_id = np.arange(5)
    if change == "a matrix":
        seeds = input_id = np.zeros((2, 2), dtype=np.int64)
    question = Question(1, SamplerConfig(0, ((3,),)), BatchRequest(0, 0, seeds, input_id))
    peer.ask("open", {"session": "s" * 20, "max_restarts": 3, "timeout_s": 60}).result()
    message = question.to_message("s" * 20, 1)
    header = dict(message.header)
    if change == "another field":
        header["path"] = "/etc/passwd"
    if change == "no field":
        del header["key"]
    with pytest.raises(RemoteError) as caught:
        peer.ask("make", header, message.body).result()
    assert caught.value.kind == "DataError"
    assert server.status()["clients"][0]["waiting"] == 0


def test_a_question_without_a_session_is_refused(farm, whole):
    peer = farm.peer(farm.serve(whole).address)
    question = Question(1, SamplerConfig(0, ((3,),)), BatchRequest(0, 0, np.arange(4), np.arange(4)))
    message = question.to_message("s" * 20, 1)
    for op in ("make", "drop", "renew", "close"):
        with pytest.raises(RemoteError, match="no such session") as caught:
            peer.ask(op, {**message.header, "run": 1}, message.body).result()
        assert caught.value.kind == "SessionLostError"


def test_a_server_has_limits_of_its_own(whole):
    """Whatever the client asks for: threads of a batch, and its memory."""
    config = SamplerConfig(0, ((3,),), threads=64, most_bytes=1 << 40)
    message = Question(1, config, BatchRequest(0, 0, np.arange(2), np.arange(2))).to_message("session", 1)
    read = read_question(
        Message(json.loads(json.dumps(message.header)), message.body), whole.manifest, most_threads=2, most_bytes=123
    )
    assert (read.config.threads, read.config.most_bytes) == (2, 123)


def test_a_question_is_charged_by_the_body_that_its_arrays_keep(whole):
    message = Question(1, SamplerConfig(0, ((3,),)), BatchRequest(0, 0, np.arange(2), np.arange(2))).to_message("s", 1)
    body = np.append(message.body, np.zeros(1000, np.uint8))
    sent = Message(json.loads(json.dumps(message.header)), body)
    assert read_question(sent, whole.manifest, most_threads=2).nbytes == len(body)


@pytest.mark.parametrize(
    ("edge_type", "dst", "src", "reason"),
    [
        (1, 0, 0, "excluded: expected an integer from 0 to 0, got 1"),
        (
            0,
            300,
            0,
            "excluded: 300 at position 0 is no node of type 'node', whose numbers in the partition are 0 to 299",
        ),
        (0, 0, -1, "excluded: -1 at position 0 is no node"),
    ],
)
def test_excluded_edges_outside_the_graph_are_refused_before_a_sampler_has_them(whole, edge_type, dst, src, reason):
    excluded = ExcludedEdges({edge_type: (np.array([dst]), np.array([src]))})
    request = BatchRequest(0, 0, np.arange(2), np.arange(2), excluded=excluded)
    message = Question(1, SamplerConfig(0, ((3,),)), request).to_message("session", 1)
    sent = Message(json.loads(json.dumps(message.header)), message.body)
    with pytest.raises(DataError, match=reason):
        read_question(sent, whole.manifest, most_threads=2)
