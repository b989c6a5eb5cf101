"""The worst request of each kind takes little memory: of every operation that a server of a plain script has."""

from __future__ import annotations

import ctypes
import json
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glt_lightning.compat.glt as glt
from glt_lightning.base import ClusterOptions, GLTError, LimitOptions, SamplingOptions
from glt_lightning.compat.glt.distributed.calls import to_message
from glt_lightning.compat.glt.distributed.server import get_server
from glt_lightning.sampling import SamplerConfig
from glt_lightning.workers import Message
from glt_lightning.workers.producer.request_codec import write_config
from glt_lightning.workers.transport.dispatch import caller_is
from glt_lightning.workers.transport.flight_transport import FlightTransport
from glt_lightning.workers.transport.message import pack

NODES = 300_000
REPLY = 8 << 20
MOST = 200 << 20  # bytes that a call may take: the limits are of replies of 8 MiB
LIMIT = 6 << 30  # of address space beyond that at the start, so that a call without a bound ends the child alone
SESSION = "worst-request-session"
DRAW = {"replace": False, "with_edge": True}

Asked = tuple[dict[str, Any], dict[str, np.ndarray]]


def hub_folder(folder: Path) -> Path:
    """Node 0 has edges to all nodes and from all; every node 16 features and a label."""
    others, hub = torch.arange(NODES), torch.zeros(NODES, dtype=torch.int64)
    edges = torch.stack([torch.cat([others, hub]), torch.cat([hub, others])])
    features = torch.zeros(NODES, 16)
    glt.partition.RandomPartitioner(folder / "parts", 1, NODES, edges, features, node_label=others % 7).partition(
        progress=False
    )
    return folder


# The worst requests of each operation: header, arrays.


def expands(hub: int) -> Iterator[Asked]:
    ask = {"key": 1, "hop": 0, "fanouts": [-1], **DRAW}
    yield ask, {"0": np.full(REPLY // 8, hub, np.int32)}
    yield ask | {"first": 10**9}, {"0": np.full(REPLY // 8, hub, np.int32)}
    yield ask, {"0": np.full(50_000_000, hub, np.int32)}
    excluded = np.stack([np.full(65_536, hub), np.arange(65_536)]).astype(np.int32)
    yield ask | {"fanouts": [5]}, {"0": np.full(1000, hub, np.int32), "excluded/0": excluded}
    yield ask | {"fanouts": [5], "labor": True}, {"0": np.full(65_536, hub, np.int32)}
    trees = {"tree/0": np.arange(65_536, dtype=np.int32)}
    yield ask | {"fanouts": [65_536], "replace": True}, {"0": np.full(65_536, hub, np.int32), **trees}


def gathers(hub: int) -> Iterator[Asked]:
    for names in (["x"], ["y"], ["n_id"]):
        yield {"tables": [["node", 0, names]]}, {"0": np.full(50_000_000, hub, np.int32)}
    yield {"tables": [["edge", 0, ["edge_ids", "indices"]]]}, {"0": np.zeros(50_000_000, np.int32)}


def pairs(hub: int) -> Iterator[Asked]:
    far = np.full(20_000_000, NODES - 1, np.int32)
    yield {"edge_type": 0}, {"dst": np.full_like(far, hub), "src": far}


def inductions(hub: int) -> Iterator[Asked]:
    rows = np.full(16_384, hub, np.int32)
    yield {"edge_type": 0}, {"rows": rows, "bitmap": np.packbits(np.ones(NODES, np.bool_))}
    yield {"edge_type": 0}, {"rows": np.full(50_000_000, hub, np.int32), "members": np.arange(NODES, dtype=np.int32)}


def walks(hub: int) -> Iterator[Asked]:
    rule = {"edge_types": [0], "length": 65_536, "restart": 0, "ends": False}
    yield rule | {"key": 1, "walks": 1}, {"roots": np.full(1023, hub, np.int32)}
    yield rule | {"length": 1, "key": 1, "walks": 65_536}, {"roots": np.full(1023, hub, np.int32)}
    on = {name: np.full(1_000_000, hub, np.int32) for name in ("roots", "at")}
    on |= {"streams": np.zeros(1_000_000, np.uint64), "step": np.zeros(1_000_000, np.int32)}
    yield rule | {"length": 65_536}, on


def batches(hub: int) -> Iterator[Asked]:
    config = json.loads(json.dumps(write_config(SamplerConfig(0, ((-1,),) * 3))))
    ids = {"session": SESSION, "talk": 1, "run": 1, "number": 0, "key": 5, "config": config}
    seeds = np.full(1 << 22, hub, np.int64)
    yield ids, {"seeds": seeds, "input_id": seeds}
    yield ids, {"seeds": seeds[:10], "input_id": seeds[:10], "extra/x": np.zeros(100_000_000, np.uint8)}
    yield ids, {"seeds": seeds[:10], "input_id": seeds[:10], "extra/x": np.zeros((), np.int64)}
    yield ids, {"seeds": seeds[:10], "input_id": seeds[:10], "link/x": np.zeros((), np.int64)}


def calls() -> dict[str, list[list[Any]]]:
    """The arguments with which a client may call the functions of the server."""
    many = torch.zeros(16_000_000, dtype=torch.uint8)
    by_index = [
        ["node", many],
        ["node", many.bool()],
        ["node", torch.tensor(3)],
        ["node", 3],
        [None, many],
        [[1], many],
    ]
    return {
        "DistServer.get_labelled_types": [[]],
        "DistServer.get_node_label": by_index,
        "DistServer.get_node_split": [["train"], [many], [[many] * 1000]],
        "torch.cuda.device_count": [[], [many]],
    }


def called(_hub: int) -> Iterator[Asked]:
    for name, asked in calls().items():
        for args in asked:
            several = isinstance(args[0], list) and len(args[0]) > 1 if args else False
            message = to_message({"func": name, "args": [args[0][:1]] if several else args})
            header = dict(message.header)
            if several:  # one tensor, named many times
                header["args"] = [header["args"][0] * len(args[0])]
            yield header | {"whole": message.body}, {}


WORST: dict[str, Callable[[int], Iterator[Asked]]] = {
    "expand": expands,
    "gather": gathers,
    "has_edges": pairs,
    "induce": inductions,
    "walk": walks,
    "here": lambda hub: iter([({}, {})]),
    "info": lambda hub: iter([({}, {})]),
    "split": lambda hub: iter([({"name": "train"}, {})]),
    "edge_split": lambda hub: iter([({"edge_type": 0, "name": "train"}, {})]),
    "seeds": lambda hub: iter([({"node_type": 0}, {}), ({"node_type": 0}, {"ids": np.zeros(10_000_000, np.int64)})]),
    "deleted": lambda hub: iter([({"node_type": 0}, {}), ({"node_type": 0}, {"ids": np.zeros(10_000_000, np.int64)})]),
    "open": lambda hub: iter([({"session": SESSION, "max_restarts": 1 << 31, "timeout_s": 1e9}, {})]),
    "make": batches,
    "drop": lambda hub: iter([({"session": SESSION, "run": 1}, {})]),
    "renew": lambda hub: iter([({"session": SESSION}, {})]),
    "status": lambda hub: iter([({}, {})]),
    "close": lambda hub: iter([({"session": SESSION}, {})]),
    "call": called,
    "left": lambda hub: iter([({"rank": 0, "clients": 2}, {})]),
}


def peak() -> int:
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) << 10


def size() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def now() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def leaves() -> Callable[[], bool]:
    """A caller that leaves after its second look."""
    looks = iter([False, False])
    return lambda: next(looks, True)


def ask_all(folder: str) -> dict[str, Any]:
    services = []
    serve = FlightTransport.serve

    def noted(self, address, service):
        services.append(service)
        return serve(self, address, service)

    FlightTransport.serve = noted
    data = glt.distributed.DistDataset(whole_node_labels=torch.arange(NODES) % 7)
    data.load(str(Path(folder) / "parts"), 0, graph_mode="ZERO_COPY")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    limits = LimitOptions(reply_size=REPLY, batch_size="32MiB")
    glt.distributed.init_server(
        1, 0, data, "localhost", port, cluster=ClusterOptions(limits=limits), sampling=SamplingOptions(num_workers=1)
    )
    (service,) = (each for each in services if "expand" in each.calls)
    view = get_server()._hosted.partition.view
    hub = int(np.argmax(np.diff(view.arrays(0, 0).indptr)))
    _ = np.asarray(view.arrays(0, 0).indices).sum()  # its pages are the file's
    found: dict[str, Any] = {"calls": sorted(service.calls), "taken": {}, "answered": [], "unexpected": []}
    found["functions"] = sorted(service.calls["call"]._table)
    libc = ctypes.CDLL(None)
    resource.setrlimit(resource.RLIMIT_AS, (size() + LIMIT,) * 2)
    for op, worst in WORST.items():
        for number, (header, arrays) in enumerate(worst(hub)):
            if (body := header.pop("whole", None)) is None:
                header["arrays"], body = pack(arrays)
            libc.malloc_trim(0)  # or a call could use what an earlier one has freed, unseen
            Path("/proc/self/clear_refs").write_text("5")
            before = now()
            try:
                service.calls[op](Message(header, body), caller_is({"role": "client"}, leaves()))
                found["answered"].append(op)
            except GLTError as error:
                if "\n" in str(error):
                    found["unexpected"].append(f"{op} {number}: {error}")
            except BaseException as error:
                found["unexpected"].append(f"{op} {number}: {error!r:.300}")
            found["taken"][f"{op} {number}"] = peak() - before
            del header, arrays, body
    glt.distributed.shutdown_rpc()
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self")
@pytest.mark.slow
def test_no_request_takes_more_than_its_limits(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.compat.test_worst_requests", str(hub_folder(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["calls"] == sorted(WORST), "an operation has no worst request here: write one"
    assert found["functions"] == sorted(calls()), "a function has no worst arguments here: write them"
    assert set(WORST) - {"split", "edge_split"} == set(found["answered"]), "all of its requests are refused"
    assert not found["unexpected"]
    assert not {name: nbytes >> 20 for name, nbytes in found["taken"].items() if nbytes > MOST}


if __name__ == "__main__":
    print(json.dumps(ask_all(sys.argv[1])))
