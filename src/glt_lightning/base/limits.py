"""Limits of what clients may use of a process that serves them."""

from __future__ import annotations

from dataclasses import dataclass

from glt_lightning.base.checks import at_least
from glt_lightning.base.errors import OptionError
from glt_lightning.base.parse import parse_bytes

_LEAST_REPLY, _MOST_REPLY = 64 << 10, 2047 << 20


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """What clients may use of a process that serves them: a graph server, or a process of ``glt_worker`` that owns parts. A
    client that finds it full tries again, with the pauses of ``cluster.retry``, until ``cluster.deadlines.reconnect_s`` is over.

    Attributes:
        streams: Number of open streams. A client has two for its calls and one for its batches; each takes a thread. When all
            are in use, an idle connection of the address with the most streams is closed.
        streams_per_host: Number of open streams from one address.
        sessions: Number of client sessions of a graph server. When all are in use, an idle one of the address with the most
            sessions is ended.
        unread_size: Bytes of replies that wait unread on one connection, such as ``"256MB"``, and of memory that its calls at
            work take. One reply may always wait, and one call may always work.
        unread_total_size: Bytes of replies that wait unread on all connections, and of memory that all calls at work take; a
            call that alone takes more waits until no other is at work. At the limit of replies, the connection with the most is
            closed if it has read nothing for 2 s.
        reply_size: Bytes of one reply of a process that owns parts, 64KiB to 2047MiB. A larger answer (all neighbours of a node
            that has millions) comes in pieces.
        batch_size: Bytes of one batch that a graph server makes. A request with fan-outs that lead to a larger batch gets an
            error.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> ClusterOptions(limits={"sessions": 8}).limits.sessions
        8
    """

    streams: int = 1024
    streams_per_host: int = 768
    sessions: int = 1024
    unread_size: int | str = "256MB"
    unread_total_size: int | str = "2GB"
    reply_size: int | str = "256MB"
    batch_size: int | str = "8GiB"

    def __post_init__(self) -> None:
        for name in ("streams", "streams_per_host", "sessions"):
            at_least(f"cluster.limits.{name}", getattr(self, name), 1)
        for name in ("unread_size", "unread_total_size", "reply_size", "batch_size"):
            parse_bytes(f"cluster.limits.{name}", getattr(self, name))
        if not _LEAST_REPLY <= self.reply_bytes <= _MOST_REPLY:
            raise OptionError(
                "cluster.limits.reply_size: expected 64KiB to 2047MiB, the most that one message takes; got "
                f"{self.reply_size!r}."
            )

    @property
    def unread_bytes(self) -> int:
        """``unread_size`` in bytes."""
        return parse_bytes("cluster.limits.unread_size", self.unread_size)

    @property
    def unread_total_bytes(self) -> int:
        """``unread_total_size`` in bytes."""
        return parse_bytes("cluster.limits.unread_total_size", self.unread_total_size)

    @property
    def reply_bytes(self) -> int:
        """``reply_size`` in bytes."""
        return parse_bytes("cluster.limits.reply_size", self.reply_size)

    @property
    def batch_bytes(self) -> int:
        """``batch_size`` in bytes."""
        return parse_bytes("cluster.limits.batch_size", self.batch_size)
