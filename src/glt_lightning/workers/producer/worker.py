"""The main program of a sampler process: reads requests, writes batches into their slots, replies with the layouts.

It imports neither torch nor Lightning: it starts in a fraction of a second and adds a few dozen megabytes to a host.
"""

from __future__ import annotations

import faulthandler
import os
import queue
import socket
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from glt_lightning.sampling import BatchRequest, SamplerConfig
from glt_lightning.workers.cluster.owner import OwnerAddresses
from glt_lightning.workers.producer.request_codec import read_config, read_request
from glt_lightning.workers.producer.samplers import Sampler, Samplers, SamplerSource
from glt_lightning.workers.slots import ClosedError, SlotWriter, receive, send
from glt_lightning.workers.transport.message import Message, as_body, layout_entries

_MOST_SAMPLERS = 32  # per thread; each has its own working memory


@dataclass(frozen=True)
class _Job:
    run: int
    config: SamplerConfig
    request: BatchRequest
    slot: SlotWriter
    once: bool


class Worker:
    """Makes batches for one trainer or server over a socket, until the other end closes it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._send_lock = threading.Lock()  # several threads reply over one socket: messages must not interleave
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._configs: dict[int, SamplerConfig] = {}
        self._slots: dict[int, SlotWriter] = {}
        self._dropped: set[int] = set()  # runs; one thread adds, other threads read: both are atomic
        self._samplers: Samplers | None = None

    def serve(self) -> None:
        """Runs until the trainer closes the socket or dies."""
        while True:
            header, body, fds = receive(self._sock)
            getattr(self, f"_on_{header['op']}")(header, body, fds)

    def _on_open(self, header: dict[str, Any], _body: bytes, _fds: list[int]) -> None:
        try:
            self._samplers = Samplers(
                SamplerSource.from_json(header["source"]), header["index"], works_for=os.getppid()
            )
        except Exception as error:
            self._answer(_fault(error))
            raise ClosedError from None
        self._answer({"opened": True, "address": self._samplers.address})
        for _ in range(header["threads"]):
            threading.Thread(target=self._work, daemon=True).start()

    def _on_join(self, header: dict[str, Any], _body: bytes, _fds: list[int]) -> None:
        assert self._samplers is not None
        self._samplers.join([OwnerAddresses.from_json(owner) for owner in header["holders"]])

    def _on_keep(self, header: dict[str, Any], _body: bytes, _fds: list[int]) -> None:
        assert self._samplers is not None
        try:
            self._samplers.keep(header["handle"])
        except Exception as error:
            self._answer(_fault(error))
            raise ClosedError from None

    def _on_make(self, header: dict[str, Any], body: bytes, fds: list[int]) -> None:
        if "config" in header:
            self._configs[header["config_id"]] = read_config(header["config"])
        slot = SlotWriter(fds[0]) if fds else self._slots[header["slot"]]
        if not header["once"]:
            self._slots[header["slot"]] = slot
        request = read_request(Message(header, as_body(body)))
        self._jobs.put(_Job(header["run"], self._configs[header["config_id"]], request, slot, header["once"]))

    def _on_drop(self, header: dict[str, Any], _body: bytes, _fds: list[int]) -> None:
        self._dropped.add(header["run"])

    def _on_forget(self, header: dict[str, Any], _body: bytes, _fds: list[int]) -> None:
        slot = self._slots.pop(header["slot"], None)
        if slot is not None:
            slot.close()

    def _work(self) -> None:
        samplers: dict[SamplerConfig, Sampler] = {}
        version = 0
        while True:
            job = self._jobs.get()
            # Samplers hold the remote cache with which they were made, and `keep` has replaced it.
            if self._samplers is not None and version != self._samplers.version:
                version = self._samplers.version
                samplers.clear()
            name = {"run": job.run, "number": job.request.number}
            try:
                answer = name | ({} if job.run in self._dropped else self._make(samplers, job))
            except BaseException as error:
                answer = name | _fault(error)
            finally:
                if job.once:
                    job.slot.close()
            self._answer(answer)

    def _make(self, samplers: dict[SamplerConfig, Sampler], job: _Job) -> dict[str, Any]:
        sampler = samplers.get(job.config)
        if sampler is None:
            assert self._samplers is not None
            if len(samplers) >= _MOST_SAMPLERS:  # configurations of a server's clients, which come and go
                del samplers[next(iter(samplers))]
            sampler = samplers[job.config] = self._samplers.make(job.config)
        draft = sampler.draft(job.request)
        draft.write(job.slot.memory(draft.nbytes))
        layout = layout_entries(draft.layout)
        return {"nbytes": draft.nbytes, "layout": layout, "counters": draft.counters.to_list()}

    def _answer(self, header: dict[str, Any]) -> None:
        # errors are ignored: the reading thread notices that the trainer is gone
        with self._send_lock, suppress(ClosedError, OSError):
            send(self._sock, header)


def _fault(error: BaseException) -> dict[str, Any]:
    return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def main(fd: int) -> None:
    """Serves the trainer or server at the other end of the socket ``fd`` until it closes the socket."""
    faulthandler.enable()
    worker = Worker(socket.socket(fileno=fd))
    try:
        worker.serve()
    except ClosedError:
        # without cleaning up: threads may be in native code, and there is nothing to flush
        os._exit(0)
