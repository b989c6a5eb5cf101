"""A partition copied from a process that serves it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.cluster.copy_source import open_any_source
from glt_lightning.cluster.files import FileService, PeerCopySource
from glt_lightning.cluster.link import Link
from glt_lightning.cluster.share import SharedFolder
from glt_lightning.data import LocalPartition
from glt_lightning.data.manifest import Manifest
from glt_lightning.errors import PartitionError, PeerError, RefusedError
from glt_lightning.lightning.cli.command_line import main
from glt_lightning.options import SecurityOptions
from glt_lightning.partition.copies import PullOptions, pull_partition
from glt_lightning.transport.base import Caller, Service
from glt_lightning.transport.certs import run_certs
from glt_lightning.transport.message import Message
from glt_lightning.transport.peer import Peer
from tests.helpers.in_process import InProcessNetwork
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.proxy import Proxy
from tests.helpers.servers import Farm, cluster, open_farm


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    return Path(partitioned(small_hetero(), tmp_path / "source", 3).directory)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def source_of(farm: Farm, address: str) -> PeerCopySource:
    return PeerCopySource(farm.peer(address), address)


@pytest.mark.parametrize("kind", ["in process", "flight"])
def test_a_server_gives_its_files(parts: Path, tmp_path: Path, kind: str) -> None:
    with open_farm(kind) as farm, closing(LocalPartition.open(parts)) as partition:
        source = source_of(farm, farm.serve(partition).address)
        pull_partition(source, tmp_path / "copy", PullOptions(parts=[1]), progress=False)
        pull_partition(source, tmp_path / "copy", progress=False)
    assert contents(tmp_path / "copy") == contents(parts)


def test_parts_that_a_server_lacks_are_named(parts: Path, tmp_path: Path) -> None:
    pull_partition_of_one = tmp_path / "one"
    with open_farm("in process") as farm, closing(LocalPartition.open(parts)) as partition:
        source = source_of(farm, farm.serve(partition).address)
        pull_partition(source, pull_partition_of_one, PullOptions(parts=[0]), progress=False)
    with open_farm("in process") as farm, closing(LocalPartition.open(pull_partition_of_one, parts=[0])) as partition:
        source = source_of(farm, farm.serve(partition).address)
        with pytest.raises(
            PartitionError, match=r"part2/.*: it cannot be read .*not on this host, which has the parts \[0\]"
        ):
            pull_partition(source, tmp_path / "copy", PullOptions(parts=[2]), progress=False)


class Disturbed(PeerCopySource):
    """Something happens before the reads with some numbers."""

    def __init__(self, peer: Peer, happens: Callable[[], None], when: range) -> None:
        super().__init__(peer, "a server")
        self._happens, self._when, self._count = happens, when, itertools.count()

    def read(self, path: str, offset: int, length: int) -> memoryview:
        if next(self._count) in self._when:
            self._happens()
        return super().read(path, offset, length)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In two parts, some of whose files take more than a piece of a TCP connection."""
    return Path(partitioned(small_graph(20_000), tmp_path_factory.mktemp("large"), 2).directory)


def test_a_server_that_ends_and_comes_back(parts: Path, tmp_path: Path) -> None:
    """In the middle of a copy, which waits for it, as other calls do."""
    with open_farm("flight") as farm, closing(LocalPartition.open(parts)) as partition:
        server = farm.serve(partition)

        def end_and_come_back() -> None:
            server.close()
            farm.serve(partition, server.address)

        source = Disturbed(farm.peer(server.address), end_and_come_back, range(5, 6))
        pull_partition(source, tmp_path / "copy", progress=False)
    assert contents(tmp_path / "copy") == contents(parts)


def test_bytes_that_change_on_the_way(large: Path, tmp_path: Path) -> None:
    """In clear text, which has no checksum but TCP's: what arrives is compared with the manifest, and fetched again."""
    with contextlib.ExitStack() as opened:
        farm = opened.enter_context(open_farm("flight"))
        partition = opened.enter_context(closing(LocalPartition.open(large)))
        proxy = opened.enter_context(Proxy(farm.serve(partition).address))
        source = opened.enter_context(closing(source_of(farm, proxy.address)))
        source.manifest()
        proxy.flip(2)
        pulled = pull_partition(source, tmp_path / "copy", progress=False)
        assert proxy.flipped == 2
        assert pulled.again + proxy.connections > 1  # fetched again, or by a connection whose frames were damaged
    assert contents(tmp_path / "copy") == contents(large)


def test_a_connection_that_is_cut(large: Path, tmp_path: Path) -> None:
    """Again and again: the copy goes on by a new one."""
    with contextlib.ExitStack() as opened:
        farm = opened.enter_context(open_farm("flight"))
        partition = opened.enter_context(closing(LocalPartition.open(large)))
        proxy = opened.enter_context(Proxy(farm.serve(partition).address))
        source = opened.enter_context(closing(Disturbed(farm.peer(proxy.address), proxy.cut, range(2, 30, 4))))
        pull_partition(source, tmp_path / "copy", progress=False)
        assert proxy.connections > 3
    assert contents(tmp_path / "copy") == contents(large)


def test_a_lying_server(parts: Path, tmp_path: Path) -> None:
    """Whatever it answers, nothing but the partition that its manifest describes becomes a copy."""
    manifest = Manifest.load(parts)
    other = Manifest.load(partitioned(small_hetero(1), tmp_path / "other", 3).directory)

    def message(body: bytes) -> Message:
        return Message({}, np.frombuffer(body, dtype=np.uint8))

    def says(raw: object) -> Callable[[Message, Caller], Message]:
        return lambda _m, _c: message(json.dumps(raw).encode())

    def file(answer: Callable[[bytes], bytes]) -> Callable[[Message, Caller], Message]:
        true = FileService(SharedFolder.open(parts)).calls["file"]
        return lambda m, c: message(answer(true(m, c).body.tobytes()))

    raw = manifest.to_json()
    path, entry = next(iter(raw["arrays"].items()))
    lies: list[tuple[dict[str, object], str]] = [
        ({"file": file(lambda data: data[:-1] + b"x")}, "came broken 3 times (digest "),
        ({"file": file(lambda data: data + data)}, "came broken 3 times ("),
        ({"file": file(lambda data: b"")}, "came broken 3 times (0 of "),
        ({"info": says(raw | {"arrays": raw["arrays"] | {"../x.npy": entry}})}, "'../x.npy' is not a path"),
        (
            {"info": says(raw | {"arrays": raw["arrays"] | {path: entry | {"shape": [2**63]}}})},
            "its shape [9223372036854775808]",
        ),
        ({"info": says([])}, "manifest"),
        ({"info": lambda _m, _c: message(b"{")}, "manifest that it sent cannot be read"),
        ({"info": says(other.to_json())}, "it was begun from another partition"),
    ]
    for change, said in lies:
        calls = {"info": says(raw), "file": file(bytes), **change}
        with InProcessNetwork() as network:
            link = Link(job="", role="tool", name="a test")
            server = network.serve("127.0.0.1:0", Service(link.greet, calls, {}))  # type: ignore[arg-type]
            source = PeerCopySource(link.peer("liar", [server.address], network), "liar")
            with closing(source), pytest.raises(PartitionError, match=re.escape(said)):
                pull_partition(source, tmp_path / "copy", PullOptions(streams=1), progress=False)
    assert not (tmp_path / "copy").exists()
    assert {p.name for p in tmp_path.iterdir()} == {"source", "other", "copy.partial"}


def test_the_command_asks_a_server(parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_farm("flight") as farm, closing(LocalPartition.open(parts)) as partition:
        main(["pull", "--from", farm.serve(partition).address, "--to", str(tmp_path / "copy"), "--streams", "2"])
    assert "copy: " in capsys.readouterr().out
    assert contents(tmp_path / "copy") == contents(parts)


# share


@contextlib.contextmanager
def told_to_end_after(work: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """In a thread: waits until `share` says where it listens, works, and sends SIGTERM, as the tests' main thread serves."""
    failures: list[BaseException] = []

    def run() -> None:
        said, deadline = "", time.monotonic() + 20
        try:
            while (found := re.search(r"listening at (\S+)", said)) is None:
                assert time.monotonic() < deadline, said
                said += capsys.readouterr().out
                time.sleep(0.01)
            work(found[1])
        except BaseException as error:
            failures.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()
    for failure in failures:
        raise failure


def test_a_folder_is_shared(parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To those with the certificates and the secret of the job, and to nobody else."""
    run_certs(["--dir", str(tmp_path / "certs"), "--hosts", "127.0.0.1", "--token"])
    (tmp_path / "other").write_text("x" * 32)
    files = {"ca": "ca.pem", "cert": "127.0.0.1.pem", "key": "127.0.0.1.key", "token_file": "token"}
    security = {name: f"{tmp_path}/certs/{file}" for name, file in files.items()}

    def copies(address: str) -> None:
        def pull(given: dict[str, str]) -> None:
            options = cluster(security=SecurityOptions(**given), deadlines=Farm.deadlines(reconnect_s=0.5))
            with closing(open_any_source(address, options)) as source:
                pull_partition(source, tmp_path / "copy", PullOptions(parts=[1]), progress=False)

        with pytest.raises(PeerError):
            pull({})
        with pytest.raises(RefusedError, match="secret"):
            pull(security | {"token_file": str(tmp_path / "other")})
        assert not (tmp_path / "copy").exists()
        pull(security)

    with told_to_end_after(copies, capsys):
        main(["share", str(parts), *(f"--cluster.security.{name}={path}" for name, path in security.items())])
    assert {p.name for p in (tmp_path / "copy").glob("part*")} == {"part1"}
    shared = SharedFolder.open(tmp_path / "copy")  # some parts alone are shared, too
    assert (shared.parts, shared.manifest) == ((1,), Manifest.load(parts))


def test_what_cannot_be_shared(parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = Manifest.load(parts)
    replace(manifest, arrays={p: replace(e, chunks=None) for p, e in manifest.arrays.items()}).save(parts)
    for words, said in (
        ([tmp_path / "none"], "none/manifest.json: not found"),
        ([parts], f"no hashes of some files, .* partition --hash {parts}"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["share", *map(str, words)])
        assert ended.value.code == 1
        assert re.search(said, capsys.readouterr().err)
    manifest.save(parts)
    for address, said in (("7000", "address: expected addresses like"), ("0.0.0.0:0", "cluster.security")):
        with pytest.raises(SystemExit):
            main(["share", str(parts), "--address", address])
        assert said in capsys.readouterr().err
