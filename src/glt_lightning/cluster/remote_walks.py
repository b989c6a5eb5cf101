"""Walks through remote parts: calls to their owners, and the replies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from glt_lightning.errors import PeerError
from glt_lightning.sampler.walk_question import MOST_WALKS, Stepped, WalkQuestion
from glt_lightning.transport.message import pack, unpack
from glt_lightning.transport.peer import Peer, PendingAnswer


def ask_walks(peer: Peer, question: WalkQuestion) -> Callable[[], Stepped]:
    """Asks at once, in as many questions as it takes; what is returned waits for the answers. Waiting raises `PeerError`."""
    step = max(1, MOST_WALKS // question.walks)
    pieces = [question.piece(begin, begin + step) for begin in range(0, len(question), step)]
    asked = [(piece, _ask(peer, piece)) for piece in pieces]
    return lambda: _joined([found for piece, answer in asked for found in _all_steps(peer, piece, answer)])


def _ask(peer: Peer, question: WalkQuestion) -> PendingAnswer:
    arrays, body = pack(question.arrays)
    return peer.ask("walk", {**question.to_header(), "arrays": arrays}, body)


def _all_steps(peer: Peer, question: WalkQuestion, answer: PendingAnswer) -> list[Stepped]:
    """An owner answers the first walks, or roots; the rest is requested after that."""
    found, done = [], 0
    while True:
        reply = unpack(answer.result())
        counts, nodes = (reply.get(name, np.empty(0)) for name in ("counts", "nodes"))
        each = Stepped(counts, nodes, reply.get("user_ids"))
        roots = _number_of_roots(question, each)
        if not 0 < roots <= len(question) - done:
            raise PeerError(f"{peer.name}: its reply to a question for {len(question) - done} walks is inconsistent.")
        found.append(each)
        done += roots
        if done == len(question):
            return found
        answer = _ask(peer, question.piece(done, len(question)))


def _number_of_roots(question: WalkQuestion, found: Stepped) -> int:
    """How many walks, or roots, a reply is about; 0 where it contradicts itself."""
    columns = [found.counts, found.nodes] + ([] if found.user_ids is None else [found.user_ids])
    if any(a.ndim != 1 or a.dtype not in (np.int32, np.int64) for a in columns) or found.counts.min(initial=1) < 1:
        return 0
    roots, rest = divmod(len(found.counts), question.walks)
    if rest or found.counts.max(initial=1) > question.rule.length or found.counts.sum() != len(found.nodes):
        return 0
    begins = question.key is not None
    return roots if (found.user_ids is not None and len(found.user_ids) == roots) == begins else 0


def _joined(found: list[Stepped]) -> Stepped:
    if len(found) == 1:
        return found[0]
    uids = [each.user_ids for each in found if each.user_ids is not None]
    counts, nodes = (np.concatenate([getattr(each, name) for each in found]) for name in ("counts", "nodes"))
    return Stepped(counts, nodes, np.concatenate(uids) if uids else None)
