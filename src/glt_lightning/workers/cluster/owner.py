"""The owner of some parts: answers calls about their rows. It keeps no state, so every call may be repeated."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from glt_lightning.base import PeerLostError, PickerSpec
from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import guarded
from glt_lightning.sampling import QUESTIONS, OwnedParts, OwnerQuestion
from glt_lightning.workers.cluster.silence import is_stopped
from glt_lightning.workers.transport.base import Caller, CallHandler
from glt_lightning.workers.transport.memory import Recycler
from glt_lightning.workers.transport.message import Message, lay_out, layout_entries, unpack, zero_padding

_SLOTS = 16  # replies in flight that are written into recycled memory


class Owner:
    """The operations on the parts that a process maps: those of `sampler.questions`, and ``here`` (a heartbeat).
    Each question's module has its messages.

    reply_bytes: limit of one reply; larger answers take several.  works_for: pid of the process whose sampler this one is;
    None: it samples for itself.  picker: that other processes may ask for.

    Raises `DataError` for a picker that cannot be made here.
    """

    def __init__(
        self,
        partition: LocalPartition,
        reply_bytes: int,
        works_for: int | None = None,
        picker: PickerSpec | None = None,
    ) -> None:
        self._works_for = works_for
        self._parts = OwnedParts(partition, reply_bytes, picker)
        self._memory = Recycler(_SLOTS)

    @property
    def calls(self) -> Mapping[str, CallHandler]:
        return {kind.op: partial(self._answer, kind) for kind in QUESTIONS} | {"here": self._here}

    def close(self) -> None:
        self._memory.close()
        self._parts.close()

    def _here(self, _message: Message, _caller: Caller) -> Message:
        pid = self._works_for
        return Message({"stopped": pid} if pid is not None and is_stopped(pid) else {})

    @guarded()  # a truncated file becomes an error to the caller, and this process goes on
    def _answer(self, kind: type[OwnerQuestion[Any]], message: Message, caller: Caller) -> Message:
        work = kind.work(message.header, unpack(message), self._parts)
        with caller.working(work.nbytes):
            reply = work.reply(partial(_require_caller, caller))
            layout, nbytes = lay_out(reply.shapes)
            # recycled memory comes back when the transport has sent it
            body = self._memory.take(nbytes) if kind.bulk else np.empty(nbytes, dtype=np.uint8)
            reply.write({place.name: place.view(body) for place in layout})
            zero_padding(layout, body)
            return Message({"arrays": layout_entries(layout), **reply.header}, body)


def _require_caller(caller: Caller) -> None:
    """Raises `PeerLostError` if nobody waits for the answer any more."""
    if caller.is_gone():
        raise PeerLostError("the caller has left")
