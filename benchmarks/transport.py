"""What moving bytes between two processes costs, layer by layer: CPU seconds of both ends per GB, over loopback.

    python benchmarks/transport.py [--rounds 3] [--mb 80] [--gb 1.6]

Bodies of --mb (a batch of [15, 10, 5] x 1024 has 80 MB) go from warm memory into warm memory: over a plain socket; over
Python's TLS; through bare Flight, in messages of --piece-kb that the reader drops; as a stream of this package's transport
(batches from a graph server); and as its replies to questions, four in flight (rows from an owner). Each also with mutual TLS.
One round runs all of them, one after the other, and each round begins with another.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from cluster import certificates
from measure import cpu_s, report

from glt_lightning.base import SecurityOptions
from glt_lightning.workers import Caller, Link, Message
from glt_lightning.workers.transport.base import Service
from glt_lightning.workers.transport.flight_common import flight

LAYERS = ("tcp", "flight", "stream", "calls")
_ASKED_AHEAD = 4
_RECEIVE = 4 << 20


def link(name: str, security: SecurityOptions) -> Link:
    return Link(job="bench", role="worker", name=name, token="benchmark-of-a-transport", security=security)


def context(security: SecurityOptions, server: bool) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.load_cert_chain(str(security.cert), security.key)
    made.load_verify_locations(security.ca)
    made.verify_mode = ssl.CERT_REQUIRED
    return made


# -- the sending process


def serve(args: argparse.Namespace) -> None:
    """Prints its addresses and ends with stdin."""
    body = np.random.default_rng(0).integers(0, 256, args.mb * 1_000_000, dtype=np.uint8)
    security = SecurityOptions(**json.loads(args.security))
    here = link("server", security)

    def stream(message: Message, _caller: Caller) -> Iterator[Message]:
        for _ in range(int(message.header["count"])):
            yield Message({}, body)

    service = Service(here.greet, {"ask": lambda message, caller: Message({}, body)}, {"stream": stream})
    sockets = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serve_sockets, args=(sockets, security, body), daemon=True).start()
    server = here.open_transport().serve("127.0.0.1:0", service)
    bare = _Bare(body, args.piece_kb << 10, security)
    own = f"127.0.0.1:{sockets.getsockname()[1]}"
    print(json.dumps({"tcp": own, "flight": f"127.0.0.1:{bare.port}", "transport": server.address}), flush=True)
    sys.stdin.read()
    bare.shutdown()
    server.close()


def _serve_sockets(listening: socket.socket, security: SecurityOptions, body: np.ndarray) -> None:
    while True:
        plain, _ = listening.accept()
        with context(security, True).wrap_socket(plain, server_side=True) if security.ca else plain as connection:
            for _ in range(int.from_bytes(connection.recv(8), "little")):
                for begin in range(0, len(body), 1 << 20):
                    connection.sendall(body[begin : begin + (1 << 20)])


class _Bare(flight.FlightServerBase):
    """Flight as it is, with messages made once."""

    def __init__(self, body: np.ndarray, piece: int, security: SecurityOptions) -> None:
        tls: dict[str, Any] = {}
        if security.ca:
            ca, cert, key = (Path(str(path)).read_bytes() for path in (security.ca, security.cert, security.key))
            tls = {"tls_certificates": [(cert, key)], "verify_client": True, "root_certificates": ca}
        self._batches = [
            pa.record_batch([pa.array(body[begin : begin + piece])], names=["body"])
            for begin in range(0, len(body), piece)
        ]
        super().__init__(f"{'grpc+tls' if tls else 'grpc+tcp'}://127.0.0.1:0", **tls)

    def do_get(self, context: Any, ticket: Any) -> Any:
        batches = self._batches * int(ticket.ticket)
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(batches[0].schema, batches))


# -- the receiving process


class Receiver:
    """Takes bodies from one server, over each layer."""

    def __init__(self, addresses: dict[str, str], security: SecurityOptions, nbytes: int) -> None:
        self._addresses, self._security, self._nbytes = addresses, security, nbytes
        self._memory = np.zeros(nbytes, dtype=np.uint8)
        here = link("client", security)
        self._peer = here.peer("server", [addresses["transport"]], here.open_transport())
        tls: dict[str, Any] = {}
        if security.ca:
            ca, cert, key = (Path(str(path)).read_bytes() for path in (security.ca, security.cert, security.key))
            tls = {"tls_root_certs": ca, "cert_chain": cert, "private_key": key}
        scheme = "grpc+tls" if tls else "grpc+tcp"
        self._flight = flight.FlightClient(f"{scheme}://{addresses['flight']}", **tls)

    def tcp(self, count: int) -> None:
        host, _, port = self._addresses["tcp"].rpartition(":")
        plain = socket.create_connection((host, int(port)))
        tls = self._security.ca is not None
        with context(self._security, False).wrap_socket(plain, server_hostname=host) if tls else plain as connection:
            connection.sendall(count.to_bytes(8, "little"))
            for _ in range(count):
                left = memoryview(self._memory)
                while left:
                    left = left[connection.recv_into(left[:_RECEIVE]) :]

    def flight(self, count: int) -> None:
        nbytes = sum(chunk.data.nbytes for chunk in self._flight.do_get(flight.Ticket(str(count))))
        assert nbytes == count * self._nbytes, nbytes

    def stream(self, count: int) -> None:
        bodies = [len(message.body) for message in self._peer.stream("stream", {"count": count})]
        assert bodies == count * [self._nbytes], bodies

    def calls(self, count: int) -> None:
        asked: deque[Any] = deque()
        for _ in range(count):
            asked.append(self._peer.ask("ask", bulk=True))
            if len(asked) == _ASKED_AHEAD:
                assert len(asked.popleft().result().body) == self._nbytes
        while asked:
            assert len(asked.popleft().result().body) == self._nbytes

    def close(self) -> None:
        self._flight.close()
        self._peer.close()


def measure(args: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """CPU seconds per GB of each layer, one number a round."""
    count = max(1, round(args.gb * 1000 / args.mb))
    running: list[subprocess.Popen[str]] = []
    runs: list[tuple[str, int, Callable[[int], None]]] = []
    receivers = []
    for security in ({}, certificates(folder)):
        command = [sys.executable, __file__, "--serve", "--security", json.dumps(security)]
        command += ["--mb", str(args.mb), "--piece-kb", str(args.piece_kb)]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(server)
        assert server.stdout is not None
        addresses = json.loads(server.stdout.readline())
        receiver = Receiver(addresses, SecurityOptions(**security), args.mb * 1_000_000)
        receivers.append(receiver)
        suffix = "_tls" if security else ""
        runs += [(layer + suffix, server.pid, getattr(receiver, layer)) for layer in args.layers]
    found: dict[str, list[float]] = {name: [] for name, _, _ in runs}
    for number in range(args.rounds + 1):
        for k in range(len(runs)):
            name, server_pid, run = runs[(k + number) % len(runs)]
            before = cpu_s([server_pid]), cpu_s([os.getpid()])
            run(count)
            spent = cpu_s([server_pid]) - before[0], cpu_s([os.getpid()]) - before[1]
            if number:  # the first round warms
                found[name].append(sum(spent) * 1000 / (count * args.mb))
    for receiver in receivers:
        receiver.close()
    for server in running:
        server.communicate("")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mb", type=int, default=80)
    parser.add_argument("--gb", type=float, default=1.6, help="of each layer in a round")
    parser.add_argument("--piece-kb", type=int, default=2048, help="messages of bare Flight")
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=LAYERS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--security", default="{}", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(args, Path(folder))
    for name, values in found.items():
        low, middle, high = min(values), statistics.median(values), max(values)
        report(bench="transport", layer=name, cpu_s_per_gb=middle, least=low, most=high, mb=args.mb, rounds=args.rounds)


if __name__ == "__main__":
    main()
