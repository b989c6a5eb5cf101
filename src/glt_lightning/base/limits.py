"""Limits of what clients may use of a process that serves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from glt_lightning.base.checks import at_least
from glt_lightning.base.errors import OptionError
from glt_lightning.base.parse import parse_bytes

_LEAST_REPLY, _MOST_REPLY = 64 << 10, 2047 << 20


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """What clients may use of a process that serves them: a graph server, or a process of ``glt_worker`` that owns parts. A
    client that finds it full tries again until ``cluster.deadlines.reconnect_s`` is over. One address has at most three
    quarters of the streams, and a graph server at most as many sessions as streams: when all are in use, an idle one is ended.

    Attributes:
        streams: Number of open streams. A client has two for its calls and one for its batches; each takes a thread. When all
            are in use, an idle connection of the address with the most streams is closed.
        unread_total_size: Bytes of replies that wait unread on all connections, and of memory that all calls at work take; a
            call that alone takes more waits until no other is at work. At the limit of replies, the connection with the most is
            closed if it has read nothing for 2 s. On one connection 256 MB may wait, and one reply always.
        reply_size: Bytes of one reply of a process that owns parts, 64KiB to 2047MiB. A larger answer (all neighbours of a node
            that has millions) comes in pieces.
        batch_size: Bytes of one batch that a graph server makes. A request with fan-outs that lead to a larger batch gets an
            error.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> ClusterOptions(limits={"streams": 4000}).limits.streams_per_host
        3000
    """

    unread_bytes: ClassVar[int] = 256_000_000  # of replies that wait unread on one connection, and of its calls at work

    streams: int = 1024
    unread_total_size: int | str = "2GB"
    reply_size: int | str = "256MB"
    batch_size: int | str = "8GiB"

    def __post_init__(self) -> None:
        at_least("cluster.limits.streams", self.streams, 1)
        for name in ("unread_total_size", "reply_size", "batch_size"):
            parse_bytes(f"cluster.limits.{name}", getattr(self, name))
        if not _LEAST_REPLY <= self.reply_bytes <= _MOST_REPLY:
            raise OptionError(
                "cluster.limits.reply_size: expected 64KiB to 2047MiB, the most that one message takes; got "
                f"{self.reply_size!r}."
            )

    @property
    def streams_per_host(self) -> int:
        """Number of open streams from one address."""
        return max(1, self.streams * 3 // 4)

    @property
    def sessions(self) -> int:
        """Number of client sessions of a graph server."""
        return self.streams

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
