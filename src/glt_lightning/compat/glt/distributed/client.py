"""A process that trains with the batches of servers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor

from glt_lightning.base import ClusterOptions, DataError, NodeType, OptionError, PeerError, RemoteError
from glt_lightning.compat.glt.distributed.calls import LABELS, from_message, name_of, to_message
from glt_lightning.compat.glt.distributed.meeting import ask_round
from glt_lightning.compat.glt.distributed.options import RemoteDistSamplingWorkerOptions
from glt_lightning.compat.glt.distributed.session import DistContext, DistRole, Membership, required, start, stop
from glt_lightning.compat.glt.fields import Lookup
from glt_lightning.compat.glt.given import Split

_GROUP = "_default_client"


def init_client(
    num_servers: int,
    num_clients: int,
    client_rank: int,
    master_addr: str,
    master_port: int | str,
    num_rpc_threads: int = 4,
    client_group_name: str | None = None,
    is_dynamic: bool = False,
    *,
    cluster: ClusterOptions | None = None,
) -> None:
    """Says that this is client ``client_rank``, and finds the servers. A collective call of all clients.

    num_servers, num_clients: how many there are.  master_addr, master_port: where server 0 listens.  client_group_name: of the
    clients.  is_dynamic: clients come and go; this one shares no calls with others.  cluster: deadlines and security.
    num_rpc_threads: no effect.

    >>> glt.distributed.init_client(2, 4, 1, "server-0", 11111)  # doctest: +SKIP
    >>> glt.distributed.init_client(2, 4, 4, "server-0", 11111)
    Traceback (most recent call last):
        ...
    glt_lightning.base.errors.OptionError: _default_client: rank: expected 0 <= rank < 4 (world size), got 4.
    """
    context = DistContext(
        DistRole.CLIENT,
        (client_group_name or _GROUP).replace("-", "_"),
        num_clients,
        client_rank,
        num_servers + num_clients,
        num_servers + client_rank,
        servers=num_servers,
        clients=num_clients,
    )
    session = start(context, cluster)
    try:
        group, rank, world = ("clients", client_rank, num_clients)
        if is_dynamic:
            group, rank, world = f"client {client_rank}", 0, 1
        session.group = session.meet(master_addr, int(master_port), group, rank, world, is_master=False)
        join_s = session.cluster.deadlines.join_s
        addresses = ask_round(session.group.peer, "servers", 0, -1, num_servers, "", join_s)
        session.job = session.group.exchange(secrets.token_hex(8))[0]
        link = session.link("client")
        transport = link.open_transport()
        for number, address in enumerate(addresses):
            session.peers.append(link.peer(f"server {number}", [address], transport))
            session.ends.callback(session.peers[-1].close)
        session.ends.callback(_say_left, session, addresses)
    except BaseException:
        stop(failed=True)
        raise


def shutdown_client() -> None:
    """Waits for the other clients, closes the loaders and tells the servers, which end when all clients have.

    >>> glt.distributed.shutdown_client()  # does nothing where there is no context
    """
    stop()


def _say_left(session: Membership, addresses: list[str]) -> None:
    """Tells all servers at once. One that was killed and is started again has as long as a call of a loader would wait for it: it
    serves for ever if it does not hear of a client that has left."""
    if session.failed:
        return
    link, left = session.link("client"), {"rank": session.context.rank, "clients": session.context.clients}
    transport = link.open_transport()
    with ExitStack() as opened:
        asked = []
        for number, address in enumerate(addresses):  # not the peers of loaders, whose patience may be used up
            peer = link.peer(f"server {number}", [address], transport)
            opened.callback(peer.close)
            asked.append(peer.ask("left", left))
        for answer in asked:
            with suppress(PeerError):  # it is gone for good
                answer.result()


def request_server(server_rank: int, func: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Any:
    """Calls a function of a server by name: ``torch.cuda.device_count``. Others are refused.

    server_rank: which.  func: the function.  args, kwargs: numbers, strings, tensors, lists and dictionaries of them.

    Raises `DataError` for a call that the server refuses, `PeerError` for a lost server.

    >>> glt.distributed.request_server(0, torch.cuda.device_count)  # doctest: +SKIP
    4
    >>> glt.distributed.request_server(0, torch.cuda.device_count)
    Traceback (most recent call last):
        ...
    glt_lightning.base.errors.OptionError: request_server: this process has no context...
    """
    session = required("request_server")
    if not 0 <= server_rank < len(session.peers):
        raise OptionError(f"server_rank: expected 0 to {len(session.peers) - 1}, got {server_rank}.")
    message = to_message({"func": name_of(func), "args": list(args), "kwargs": kwargs})
    try:
        return from_message(session.peers[server_rank].ask("call", message.header, message.body).result()).get("value")
    except RemoteError as error:
        if error.kind in ("DataError", "OptionError"):
            raise DataError(str(error)) from None
        raise


def seeds_of_split(input_nodes: Any, options: Any) -> Any:
    """The ids of a `Split` that this client's server has made of its parts; of all its servers where it is the only client. Other
    seeds, and a split of the partition, are as they were given."""
    if not isinstance(input_nodes, Split) or not isinstance(options, RemoteDistSamplingWorkerOptions):
        return input_nodes
    session, given = required("RemoteDistSamplingWorkerOptions"), options.server_rank
    numbers = [options.server_of(session.context.rank, len(session.peers))]
    if isinstance(given, Sequence) and session.context.world_size == 1:
        numbers = list(given)
    found = [request_server(number, "DistServer.get_node_split", input_nodes.value) for number in numbers]
    return input_nodes if any(each is None for each in found) else torch.cat(found)


def remote_labels(number: int) -> tuple[Lookup | None, frozenset[NodeType]]:
    """Labels that a server has beside its partition: asked for each batch."""
    labelled = frozenset(request_server(number, "DistServer.get_labelled_types"))

    def look_up(node_type: NodeType, ids: Tensor) -> Tensor:
        found, done = [request_server(number, LABELS, node_type, ids)], 0
        while (done := done + len(found[-1])) < len(ids):  # an answer may have the first rows alone
            if not len(found[-1]):
                raise PeerError(f"server {number}: its answer has {done} labels of {len(ids)}, and no more.")
            found.append(request_server(number, LABELS, node_type, ids[done:]))
        return torch.cat(found)

    return (look_up if labelled else None), labelled
