"""Limits of what clients may use of a process that serves them."""

from __future__ import annotations

from dataclasses import dataclass

from glt_lightning.errors import OptionError
from glt_lightning.options.checks import at_least
from glt_lightning.options.parse import parse_bytes

_LEAST_REPLY, _MOST_REPLY = 64 << 10, 2047 << 20


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """How much of a process that serves others its clients may have. Who finds it full tries again until its deadline.

    Attributes:
        streams: Streams that it has open in all; a client has two for its calls, and one for its batches. Each takes a
            thread. Where all are taken, an idle connection of the address that has the most is ended.
        streams_per_host: Those from one address.
        sessions: Sessions of clients that a graph server has. Where all are taken, an idle one of the address that has the
            most is ended.
        unread_size: Bytes of replies that are made for one connection and not read yet, such as ``"256MB"``. One reply is
            always made.
        unread_total_size: The same for all connections; where it is reached, the one with the most is ended if it does not
            read.
        reply_size: Bytes of one reply of a process that owns parts. A larger answer (a node with millions of neighbours, at
            fan-out -1) is asked for in pieces.
        batch_size: Bytes of one batch that a graph server makes. A question with fan-outs that lead to a larger one gets an
            error.

    Example:
        >>> ClusterOptions(limits={"sessions": 8}).limits.sessions
        8
    """

    streams: int = 1024
    streams_per_host: int = 768
    sessions: int = 1024
    unread_size: int | str = "256MB"
    unread_total_size: int | str = "2GB"
    reply_size: int | str = "256MiB"
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
