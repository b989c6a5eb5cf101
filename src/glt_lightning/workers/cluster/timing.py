"""What a connection costs: calls over loopback between two ends in this process, timed; and what an owner of rows costs."""

from __future__ import annotations

import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import cycle

import numpy as np

from glt_lightning.base import SecurityOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.sampling import BatchRequest, KHopSampler, SamplerConfig
from glt_lightning.workers.cluster.link import Link
from glt_lightning.workers.cluster.owner import OwnerServer
from glt_lightning.workers.cluster.remote_rows import PeerRows
from glt_lightning.workers.transport.base import Caller
from glt_lightning.workers.transport.message import Message
from glt_lightning.workers.transport.peer import Peer

_CALLS, _PIECES, _SLOW_PIECES, _PIECE_BYTES = 64, 8, 3, 4 << 20
# Calls follow each other as in training: meanwhile threads sleep, and caches of the processor fill with rows. Without pauses a
# call took two thirds of the CPU time.
_BETWEEN_S, _ROWS_BYTES = 0.003, 8 << 20
_ARRIVAL_BYTES, _PAUSE_S, _MOST_ARRIVALS = 12_500, 0.001, 5  # of 100 Mbit/s, and those that Linux makes one of at most
_MOST_OWNERS = 7
# Between two batches the caches of the processor fill with what a step goes through. With 8 MB, a batch of 17 MB from three
# owners took 48 ms of CPU time beyond a local one; with 64 MB, 56; in a training of four hosts, 71.
_STEP_BYTES = 64 << 20
_LEAST_ASKED, _MOST_ASKED, _ASKED_S = 3, 15, 2.5  # batches of a kind, and the seconds after which there are enough

Batches = tuple[SamplerConfig, Sequence[BatchRequest]]


def time_calls(
    *, encrypted: bool = False, partition: LocalPartition | None = None, asked: Sequence[Batches] = ()
) -> dict[str, float]:
    """Times calls over loopback: ``round_trip_s``, wall seconds of a small call, and CPU seconds of both ends: ``call_cpu_s``,
    per call, ``byte_cpu_s``, per byte, and ``arrival_cpu_s``, for each time that bytes arrive which have been waited for.

    encrypted: by mutual TLS, as between hosts.  partition: with all its parts, of which other owners then have all but the
    first. The seconds per call and per byte are those by which a batch takes longer than one whose rows are all here: its
    questions, the owners' work, the copies and the stitching.  asked: two kinds of batches of it, of few seeds and of many."""
    link = Link(job="plan", role="worker", name="plan", token="connection-of-a-probe")

    def found(link: Link) -> dict[str, float]:
        return _time_calls(link) | ({} if partition is None else _time_owner(link, partition, asked))

    if not encrypted:
        return found(link)
    from glt_lightning.workers.transport.certs import CertificateFolder

    with tempfile.TemporaryDirectory() as name:
        folder = CertificateFolder(name)
        folder.make_authority()
        cert, key = folder.make_certificate("plan", ["127.0.0.1"])
        return found(replace(link, security=SecurityOptions(ca=str(folder.ca), cert=str(cert), key=str(key))))


def _time_calls(link: Link) -> dict[str, float]:
    batch = np.zeros(_PIECE_BYTES, dtype=np.uint8)

    def answer(message: Message, _caller: Caller) -> Message:
        # new memory, as an owner's rows are
        return Message({}, np.ones(_PIECE_BYTES, dtype=np.uint8)) if message.header.get("large") else Message({})

    def take(peer: Peer, count: int) -> None:
        for _ in range(count):
            batch[:] = peer.ask("ask", {"large": True}, bulk=True).result().body  # as rows are copied into a batch

    server = link.serve("127.0.0.1:0", {"ask": answer})
    try:
        with _peer(link, server.address) as peer:
            take(peer, 1)
            calls = _paced(lambda: peer.ask("ask", {}).result())
            pieces = [_timed(lambda: take(peer, 1))[1] for _ in range(_PIECES)]
        with _slow_road(server.address) as road, _peer(link, road.address) as peer:
            peer.ask("ask", {}, bulk=True).result()
            slow = [_arrivals(lambda: take(peer, 1), road) for _ in range(_SLOW_PIECES)]
    finally:
        server.close()
    call_cpu_s, piece_cpu_s = calls[1] / _CALLS, statistics.median(pieces)
    return {
        "round_trip_s": calls[0] / _CALLS,
        "call_cpu_s": call_cpu_s,
        "byte_cpu_s": max(0.0, piece_cpu_s - call_cpu_s) / _PIECE_BYTES,
        "arrival_cpu_s": max(0.0, statistics.median((cpu_s - piece_cpu_s) / arrived for cpu_s, arrived in slow)),
    }


def _arrivals(work: Callable[[], object], road: _SlowRoad) -> tuple[float, float]:
    """(CPU seconds of the work without those of the road, arrivals)"""
    own_s, nbytes = road.cpu_s, road.nbytes
    cpu_s = _timed(work)[1]
    return cpu_s - (road.cpu_s - own_s), (road.nbytes - nbytes) / _ARRIVAL_BYTES


def _time_owner(link: Link, partition: LocalPartition, asked: Sequence[Batches]) -> dict[str, float]:
    parts = partition.manifest.num_parts
    # part 0 is here, each other one has an owner; without another one, none is here
    owner_of_part = np.arange(parts, dtype=np.int32) % (1 + _MOST_OWNERS) if parts > 1 else np.ones(1, dtype=np.int32)
    with closing(OwnerServer(partition, link, "127.0.0.1:0", picker=asked[0][0].picker)) as server:
        transport = link.open_transport()
        peers = [link.peer("plan", [server.address], transport) for _ in range(int(owner_of_part.max()))]
        with closing(PeerRows(owner_of_part, peers)) as rows:
            few, many = (_ask(partition, rows, *each) for each in asked)
    # Two kinds of batches, two unknowns; what is measured may be less than nothing.
    unlike = few[0] * many[1] - many[0] * few[1]
    byte_cpu_s = max(0.0, (few[0] * many[2] - many[0] * few[2]) / unlike) if unlike else 0.0
    return {"call_cpu_s": max(0.0, many[2] - byte_cpu_s * many[1]) / max(1.0, many[0]), "byte_cpu_s": byte_cpu_s}


def _ask(
    partition: LocalPartition, rows: PeerRows, config: SamplerConfig, requests: Sequence[BatchRequest]
) -> tuple[float, float, float]:
    """(calls, bytes, CPU seconds beyond those of a batch whose rows are all here) of a batch, in the mean and the median."""
    here, there = (_maker(KHopSampler(partition, config, remote=each), requests) for each in (None, rows))
    touched = np.zeros(_STEP_BYTES, dtype=np.uint8)

    def cpu_s(make: Callable[[], None]) -> float:
        """With a pause, which is the same for both."""
        began_s = time.process_time()
        make()
        time.sleep(_BETWEEN_S)
        np.add(touched, 1, out=touched)
        return time.process_time() - began_s

    here()  # it is a batch ahead, so that no batch finds its rows in the caches of the processor
    cpu_s(here)
    cpu_s(there)
    before, began_s, spent = rows.traffic, time.perf_counter(), list[float]()
    while len(spent) < _LEAST_ASKED or (len(spent) < _MOST_ASKED and time.perf_counter() - began_s < _ASKED_S):
        local_s = cpu_s(here)
        spent.append(cpu_s(there) - local_s)
    after = rows.traffic
    nbytes = after.bytes_out + after.bytes_in - before.bytes_out - before.bytes_in
    return (after.round_trips - before.round_trips) / len(spent), nbytes / len(spent), statistics.median(spent)


def _maker(sampler: KHopSampler, requests: Sequence[BatchRequest]) -> Callable[[], None]:
    """Makes the next batch at each call, in memory that is used again."""
    left, memory = cycle(requests), np.zeros(0, dtype=np.uint8)

    def make() -> None:
        nonlocal memory
        draft = sampler.draft(next(left))
        if draft.nbytes > len(memory):
            memory = np.zeros(2 * draft.nbytes, dtype=np.uint8)
        draft.write(memory)

    return make


@contextmanager
def _peer(link: Link, address: str) -> Iterator[Peer]:
    peer = link.peer("plan", [address], link.open_transport())
    try:
        yield peer
    finally:
        peer.close()


def _paced(work: Callable[[], object]) -> tuple[float, float]:
    """(wall, CPU) seconds of ``_CALLS`` times the work, without those of the pauses before each."""
    rows = np.zeros(_ROWS_BYTES, dtype=np.uint8)

    def run(work: Callable[[], object]) -> tuple[float, float]:
        wall_s, cpu_s = 0.0, time.process_time()
        for _ in range(_CALLS):
            time.sleep(_BETWEEN_S)
            np.add(rows, 1, out=rows)
            wall_s += _timed(work)[0]
        return wall_s, time.process_time() - cpu_s

    _, pauses_s = run(lambda: None)
    wall_s, cpu_s = run(work)
    return wall_s, max(0.0, cpu_s - pauses_s)


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """(wall, CPU) seconds."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall_s, time.process_time() - cpu_s


@dataclass
class _SlowRoad:
    """address: of its beginning.  cpu_s: of its own threads.  nbytes: that it has brought."""

    address: str
    cpu_s: float = 0.0
    nbytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def carry(self, source: socket.socket, target: socket.socket) -> None:
        """Carries bytes until either end closes: a piece, or those of the time since the last one, as a network does not wait for
        a busy machine."""
        before_s, sent_s = time.thread_time(), time.perf_counter()
        with suppress(OSError):
            while data := source.recv(_ARRIVAL_BYTES * self._due(sent_s)):
                sent_s = time.perf_counter()
                target.sendall(data)
                time.sleep(_PAUSE_S)
                now_s = time.thread_time()
                with self.lock:
                    self.cpu_s, self.nbytes = self.cpu_s + now_s - before_s, self.nbytes + len(data)
                before_s = now_s
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _due(self, sent_s: float) -> int:
        return min(_MOST_ARRIVALS, max(1, int((time.perf_counter() - sent_s) / _PAUSE_S)))


@contextmanager
def _slow_road(address: str) -> Iterator[_SlowRoad]:
    """Carries connections to an address in small pieces, as a slow network does."""
    host, _, port = address.rpartition(":")
    ends: list[socket.socket] = []
    threads: list[threading.Thread] = []
    with socket.create_server((host, 0)) as listener:
        road = _SlowRoad(f"{host}:{listener.getsockname()[1]}")

        def accept() -> None:
            with suppress(OSError):
                while True:
                    pair = listener.accept()[0], socket.create_connection((host, int(port)))
                    ends.extend(pair)
                    for source, target in (pair, pair[::-1]):
                        threads.append(threading.Thread(target=road.carry, args=(source, target), daemon=True))
                        threads[-1].start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield road
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for end in ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
            for end in ends:
                end.close()
