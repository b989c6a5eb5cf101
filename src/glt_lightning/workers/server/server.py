"""The graph server: sampler processes that make batches for any number of clients.

A client opens a session, asks for batches and takes them from a stream in the order in which they are finished. It
chooses the session's id, 16 to 100 characters that nobody can guess: the id alone identifies the client.

Operation, request and reply:

* **open**: ``session``, ``max_restarts``, ``timeout_s``, ``place``; ``lease_s``, ``handover``
* **make**: ``session``, ``talk``, ``run``, ``number``, ``key``, ``config``, arrays ``seeds`` and ``input_id`` int64
  [S], and optionally ``seeds/<node type>`` int64, ``excluded/<edge type>`` int64 [2, X] as in ``expand``,
  ``tree/<node type>`` int32, ``extra/<name>`` and ``link/<name>``, and ``neighbor_key``, 64 bits, where several batches
  draw the same neighbours; the reply is empty and comes at once, before the batch is made
* **drop**: ``session``, ``run``: the server forgets the batches of the run that it has not made yet
* **renew**: ``session``: extends the lease
* **close**: ``session``: ends it
* **status**: ``rank``, ``address``, ``graph``, ``partition``, ``version``, ``parts``, ``num_parts``, ``uptime_s``,
  ``num_clients``, ``clients`` (at most 100), ``samplers``, ``memory``, ``batches_per_s``
* stream **batches**: ``session``, ``talk``; ``run``, ``number``, and ``arrays`` and ``counters``, or ``error`` and
  ``traceback``

``talk`` counts the streams of a session. A stream with a higher number, or a request that names one, ends the stream
before it and inherits the batches that were not taken from it. The client repeats all unanswered requests under the new
number, since a batch may have been lost with the old stream. The server ignores requests under an older number: they
were sent before the stream broke, and their client has repeated them.

``counters`` is the cost of the batch: a list of eleven counts, four times in seconds, and two counts, each at least 0
and below 2^63. In order: rows and bytes that were local, cached, remote, on disk; nodes whose neighbours were drawn,
those of them with cached and with remote lists; the time for sampling, owners, disk and copying; and rows and bytes
that were on a training device, which is 0 for a server (``Counters`` in ``sampling/counters.py`` says more). A client
reads an invalid number as 0 and accepts the batch.

A session ends when its client was silent for ``lease_s``. Then, and after a restart of the server, operations that name
it fail with the kind ``SessionLostError``; the client opens another one and repeats its requests. ``max_restarts``: how
often a batch may end its sampler process before the answer is an ``error``. ``timeout_s``: how long the client waits
for a batch; a sampler that is silent for half of it, but at least for 10 s, is replaced.

`request_codec` has the fields of ``make``, `handover` the messages within a host.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from glt_lightning.base import DataError, ServingOptions, read_integer
from glt_lightning.graph import LocalPartition, probed, usable_cores
from glt_lightning.workers.producer.samplers import SamplerSource
from glt_lightning.workers.server.handover import HandoverServer
from glt_lightning.workers.server.question import read_question
from glt_lightning.workers.server.scheduler import Scheduler
from glt_lightning.workers.server.sessions import Finished, Session, SessionLostError
from glt_lightning.workers.transport.base import Caller, CallHandler, Service, Transport
from glt_lightning.workers.transport.message import Message

_PAUSE_S = 0.5  # between checks whether the reader of a stream is still connected
_MOST_FAILURES = 10  # samplers that one batch may end: bounds the ``max_restarts`` of a client
_PROMPT = frozenset({"here", "open", "drop", "renew", "close", "status"})
_MOST_ID = 100  # characters of a session id
_MOST_SHOWN = 100  # clients in a status, so that it fits into a header


class GraphServer:
    """Makes batches for the clients that connect to ``address``. Listens, with its samplers ready, once it is constructed.
    Close it.

    Clients open a session, ask for batches (``make``) and take them from a stream (``batches``) in the order in which they
    are finished; the module's docstring has the messages. A question carries everything that its batch depends on, so the
    server keeps no state of an epoch, and a restarted server makes the same batches.

    Its components: a `Scheduler`, which owns samplers and sessions; a `HandoverServer` for clients on the same host; and
    the operations, which check requests and call the scheduler.

    Args:
        partition: The mapped parts.
        options: Sampler processes, buffer, deadlines.
        transport: The transport over which clients reach the server.
        address: Where to listen, ``host:port``; port 0 picks a free port.
        rank: Number of this server among the servers of the job.
        source: The graph that the samplers open; by default that of ``partition``.
        services: Further calls that the server offers, by operation.
        greet: Answers a peer's greeting, or raises `RefusedError`.

    Raises `SamplerError` if the samplers do not start, `OptionError` for an address that cannot be used.
    """

    def __init__(
        self,
        partition: LocalPartition,
        options: ServingOptions,
        transport: Transport,
        address: str,
        *,
        greet: Callable[[Mapping[str, Any]], dict[str, Any]],
        rank: int = 0,
        source: SamplerSource | None = None,
        services: Mapping[str, CallHandler] | None = None,
    ) -> None:
        self._partition, self._options, self._rank = partition, options, rank
        self._begun_s, self._cores = time.monotonic(), usable_cores()
        self._closed = False
        source = SamplerSource.of(partition) if source is None else source
        self._picker = None if source.picker is None else probed(source.picker, partition.manifest)
        self._scheduler = scheduler = Scheduler(source, options, self._slot_gone)
        self._handover: HandoverServer | None = None
        calls = {
            **(services or {}),
            "open": self._open,
            "make": self._make,
            "drop": self._drop,
            "renew": self._renew,
            "close": self._end_session,
            "status": self._report_status,
        }
        try:
            # Before the transport: a client may open a session, and be offered the handover, while `serve` still returns.
            self._handover = HandoverServer(
                scheduler.begin_stream, scheduler.taken, scheduler.retire, options.deadlines.call_s
            )
            self._server = transport.serve(address, Service(greet, calls, {"batches": self._batches}, _PROMPT))
        except BaseException:
            self._end()
            raise
        self.address = self._server.address

    def status(self) -> dict[str, Any]:
        """Describes the server, its clients and its samplers as JSON values. Raises `PeerError` if its scheduler has failed."""
        found, manifest = self._scheduler.status(), self._partition.manifest
        clients, samplers = found["clients"], found["samplers"]
        return {
            "rank": self._rank,
            "address": self.address,
            "graph": manifest.options_hash,
            "partition": str(self._partition.directory),
            "version": manifest.of_version or 0,
            "parts": [p for p in self._partition.parts if p < manifest.base_parts],
            "num_parts": manifest.base_parts,
            "uptime_s": round(time.monotonic() - self._begun_s, 3),
            "num_clients": len(clients),
            "clients": clients[:_MOST_SHOWN],
            "samplers": samplers,
            "memory": {"server_bytes": _rss(os.getpid()), "sampler_bytes": [_rss(pid) for pid in samplers["pids"]]},
            "batches_per_s": round(sum(client["batches_per_s"] for client in clients), 2),
        }

    def keep(self, handle: Mapping[str, Any]) -> None:
        """Lets the samplers read rows from the `RemoteCache` of this handle from now on. Does not wait for them."""
        self._scheduler.keep(handle)

    def close(self) -> None:
        """Ends all sessions, the samplers and every connection. Safe to call twice."""
        if not self._closed:
            self._closed = True
            # Connections end before sessions: to clients this looks like a lost server, so they wait for the next one. Were
            # sessions ended first, clients would get errors.
            self._scheduler.end_streams()
            self._server.close()
            self._end()

    def _end(self) -> None:
        if self._handover is not None:
            self._handover.close()
        self._scheduler.close()

    def _slot_gone(self, slot: int) -> None:
        if self._handover is not None:
            self._handover.forget(slot)

    # -- operations, on the transport's threads

    def _open(self, message: Message, caller: Caller) -> Message:
        id_ = message.header.get("session")
        if not isinstance(id_, str) or not 16 <= len(id_) <= _MOST_ID:
            raise DataError(f"session: expected an id of 16 to {_MOST_ID} characters, got {id_!r:.50}.")
        # A client may ask for any number of attempts, but each one ends a sampler that works for other clients, too.
        failures = min(_MOST_FAILURES, read_integer(message.header, "max_restarts", 0, 1 << 31))
        patience_s = message.header.get("timeout_s")
        if not isinstance(patience_s, (int, float)) or not patience_s > 0:
            raise DataError(f"timeout_s: expected a number of seconds > 0, got {patience_s!r:.50}.")
        lease_s = self._options.deadlines.lease_s
        job = f"{caller.hello.get('job', '')!s:.200}"
        self._scheduler.open(Session(id_, caller.name, job, lease_s, patience_s, failures, caller.host))
        assert self._handover is not None
        return Message({"lease_s": lease_s, "handover": self._handover.offer(message.header.get("place"))})

    def _make(self, message: Message, _caller: Caller) -> Message:
        question = read_question(
            message,
            self._partition.manifest,
            most_threads=self._cores,
            most_bytes=self._options.limits.batch_bytes,
            picker=self._picker,
        )
        stream = read_integer(message.header, "talk", 1, 2**62)
        self._scheduler.ask(message.header["session"], stream, question)
        return Message({})

    def _drop(self, message: Message, _caller: Caller) -> Message:
        run = read_integer(message.header, "run", 0, 2**62)
        self._scheduler.drop(message.header.get("session"), run)
        return Message({})

    def _renew(self, message: Message, _caller: Caller) -> Message:
        self._scheduler.renew(message.header.get("session"))
        return Message({})

    def _end_session(self, message: Message, _caller: Caller) -> Message:
        self._scheduler.end(message.header.get("session"))
        return Message({})

    def _report_status(self, _message: Message, _caller: Caller) -> Message:
        return Message(self.status())

    def _batches(self, message: Message, caller: Caller) -> Iterator[Message]:
        number = read_integer(message.header, "talk", 1, 2**62)
        session, stream = self._scheduler.begin_stream(message.header.get("session"), number)
        while stream is not None and not caller.is_gone():
            found = stream.take(_PAUSE_S)
            if session.ended:
                raise SessionLostError(
                    "the session has ended: the client was silent for longer than cluster.deadlines.lease_s, or it was idle when "
                    "a new client found as many sessions as cluster.limits.streams allows."
                )
            if stream.ended:
                return
            while found:
                # popped by _as_message: a local variable would keep the batch's memory after the transport has sent it
                yield _as_message(found)
                session.heard()  # the transport asks for more only if the client reads, so the client is alive


def _as_message(found: list[Finished]) -> Message:
    item = found.pop()
    return Message(item.header, item.memory)


def _rss(pid: int) -> int:
    """Resident bytes of a process; 0 if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
