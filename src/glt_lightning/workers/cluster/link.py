"""The identity of a process in its job, and the check of its peers' identities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from glt_lightning.base import DeadlineOptions, LimitOptions, RefusedError, RetryOptions, SecurityOptions
from glt_lightning.graph import difference
from glt_lightning.workers.transport.base import PROTOCOL, Transport
from glt_lightning.workers.transport.peer import Peer

_SECURITY, _DEADLINES, _RETRY, _LIMITS = SecurityOptions(), DeadlineOptions(), RetryOptions(), LimitOptions()


def package_version() -> str:
    """Version of this package: peers must have the same."""
    from glt_lightning.base import __version__

    return __version__


@dataclass(frozen=True, kw_only=True)
class Link:
    """The identity and options with which a process connects to its peers. Plain values, to be sent to a child process.

    job: name of the job; empty for servers, which serve any.  role: worker, client, server or tool.
    name: how peers name this process in their errors.  graph: `partition_id`, "" if not known yet.
    token: the job's secret where it does not come from ``security.token_file``.
    """

    job: str
    role: str
    name: str
    graph: str = ""
    token: str | None = None
    security: SecurityOptions = _SECURITY
    deadlines: DeadlineOptions = _DEADLINES
    retry: RetryOptions = _RETRY
    limits: LimitOptions = _LIMITS

    def to_json(self) -> dict[str, Any]:
        """The fields, for a private channel: the token is among them."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Link:
        kinds = {
            "security": SecurityOptions,
            "deadlines": DeadlineOptions,
            "retry": RetryOptions,
            "limits": LimitOptions,
        }
        return cls(**{name: kinds[name](**value) if name in kinds else value for name, value in raw.items()})

    def named(self, name: str) -> Link:
        """The same for another process of this rank, such as a sampler."""
        return replace(self, name=name)

    def open_transport(self) -> Transport:
        """Arrow Flight with this job's credentials. Raises `OptionError` for files that cannot be used."""
        from glt_lightning.workers.transport.credentials import Credentials
        from glt_lightning.workers.transport.flight_transport import FlightTransport

        return FlightTransport(Credentials.load(self.security, self.token), self.deadlines, self.limits)

    def hello(self) -> dict[str, Any]:
        """The greeting of this process."""
        return {
            "protocol": PROTOCOL,
            "version": package_version(),
            "job": self.job,
            "role": self.role,
            "name": self.name,
            "graph": self.graph,
        }

    def peer(self, name: str, addresses: Sequence[str], transport: Transport) -> Peer:
        """A peer by its name and the addresses at which any of its processes can be reached."""
        return Peer(name, addresses, transport, self.hello(), self.deadlines, self.retry)

    def greet(self, hello: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a peer's greeting. Raises `RefusedError` for another release, job or partition."""
        mine = self.hello()
        peer = str(hello.get("name", "a peer without a name"))[:200]
        for key in ("protocol", "version"):
            if hello.get(key) != mine[key]:
                raise RefusedError(
                    f"{peer} has {key} {hello.get(key)!r:.50}, {self.name} has {mine[key]!r}. "
                    "Install the same release of glt-lightning everywhere."
                )
        if self.job and hello.get("job") != self.job and hello.get("role") != "tool":
            raise RefusedError(
                f"{peer} belongs to another job than {self.name}. Check the addresses, or end the other job."
            )
        if self.graph and hello.get("graph") and hello["graph"] != self.graph:
            raise RefusedError(
                f"{peer} and {self.name} have different partitions: {difference(hello['graph'], self.graph)}"
            )
        return mine
