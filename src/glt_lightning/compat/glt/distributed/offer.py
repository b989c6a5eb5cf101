"""What a worker answers to the others: a question is a dictionary, and so is its answer; nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from glt_lightning.base import OptionError
from glt_lightning.compat.glt.distributed.client import PendingRequest
from glt_lightning.compat.glt.distributed.server import CallTable, to_message
from glt_lightning.compat.glt.distributed.session import required
from glt_lightning.workers import PendingAnswer, Service

_OP = "call"
_FUNC = "answer"


class Offer:
    """Made by all workers at once: a collective call. It ends with the context of the process.

    who: the class whose offer it is, for errors.  answer: called with the keywords of a question, on any thread.  working: the
    bytes of memory that an answer to these keywords takes, to be reserved before it.  about: a value of this process that JSON
    can represent.

    abouts: those of all workers, by rank.
    """

    def __init__(self, who: str, answer: Callable[..., Any], working: Callable[..., int], about: Any) -> None:
        session = required(who)
        group = session.group
        if group is None:
            raise OptionError(
                f"{who}: the processes have not met. Call init_rpc(master_addr, master_port) first, on all of them."
            )
        link, host = session.link("worker"), session.own_host()
        transport = link.open_transport()
        service = Service(link.greet, {_OP: CallTable({_FUNC: answer}, {_FUNC: working})}, {})
        server = transport.serve(f"[{host}]:0" if ":" in host else f"{host}:0", service)
        session.ends.callback(server.close)
        self.group, self.rank = group, group.rank
        answers = [json.loads(text) for text in group.exchange(json.dumps([server.address, about]))]
        self.abouts = [each for _, each in answers]
        self._peers = [link.peer(f"worker {rank}", [address], transport) for rank, (address, _) in enumerate(answers)]
        for peer in self._peers:
            session.ends.callback(peer.close)

    def ask(self, rank: int, **question: Any) -> PendingRequest:
        """Asks worker ``rank``. With ``ids`` it may answer the first ones; the others are then asked for, too."""

        def ask(question: Mapping[str, Any]) -> PendingAnswer:
            message = to_message({"func": _FUNC, "args": [], "kwargs": question})
            return self._peers[rank].ask(_OP, message.header, message.body)

        if "ids" not in question:
            return PendingRequest(ask(question))
        return PendingRequest(ask(question), question["ids"], lambda rest: ask(question | {"ids": rest}))
