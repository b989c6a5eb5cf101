"""Deadlines of calls between processes, and the pauses between attempts."""

from __future__ import annotations

from dataclasses import dataclass

from glt_lightning.base.checks import above_zero


@dataclass(frozen=True, kw_only=True)
class DeadlineOptions:
    """How long the processes of a job wait for each other, in seconds.

    Attributes:
        connect_s: One attempt to reach a peer.
        call_s: One attempt of one call.
        reconnect_s: How long to retry an unresponsive peer before the run fails; longer than a server takes to restart.
        lease_s: Session lease: how long a server keeps the state of a silent client.
        start_s: Until the processes that a rank or a server starts itself are ready.
        join_s: Until the ranks of all hosts of a job (``trainer.num_nodes``) have met.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> ClusterOptions(deadlines=DeadlineOptions(call_s=10, reconnect_s=300)).deadlines.call_s
        10
        >>> DeadlineOptions(call_s=0)
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: cluster.deadlines.call_s: ...
    """

    connect_s: float = 10.0
    call_s: float = 30.0
    reconnect_s: float = 120.0
    lease_s: float = 15.0
    start_s: float = 60.0
    join_s: float = 600.0

    def __post_init__(self) -> None:
        for name in ("connect_s", "call_s", "reconnect_s", "lease_s", "start_s", "join_s"):
            above_zero(f"cluster.deadlines.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class RetryOptions:
    """Pauses between attempts to reach a peer, in seconds; no options of a user.

    Attributes:
        first_s: The first pause. Each further one is twice as long.
        most_s: The longest pause.

    Example:
        >>> RetryOptions(first_s=0.1, most_s=5.0).most_s
        5.0
    """

    first_s: float = 0.05
    most_s: float = 2.0
