"""Versions of a graph at graph servers and over hosts that map some parts each: the batches of one process that maps all."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.base import EDGE, CacheOptions, OptionError, PartitionError, SamplingOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.loader import LinkSpec, LoaderSpec, Session
from glt_lightning.partition import Additions, Versions, append_rows, delete_rows, open_version
from glt_lightning.partition.delta import digest_of
from glt_lightning.workers import HostsGraph, Ranks, RemoteGraph
from tests.helpers.contents import contents
from tests.helpers.grown import KINDS as GROWN, TYPED, TwoVersions, two_versions
from tests.helpers.ranks import run_ranks
from tests.helpers.servers import open_farm
from tests.lightning.serving import serving
from tests.partition.test_grow import specs
from tests.workers.test_group import link

KINDS = {**GROWN, "deleted": {"graph": {"undirected": True}, "deletes": True}}
QUICK = ("plain", "times of nodes", "deleted")
EACH_KIND = [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in KINDS]


def contents_of(session: Session, made: list[LoaderSpec | LinkSpec]) -> list[Any]:
    return [contents(batch) for spec in made for batch in session.make_loader(spec)]


def grown(
    folder: Path, kind: str, number: int, parts: int
) -> tuple[TwoVersions, list[LoaderSpec | LinkSpec], SamplingOptions]:
    """A folder with a version, which ``specs`` read."""
    rng = np.random.default_rng([number, len(kind)])
    given = KINDS[kind]
    two = two_versions(rng, TYPED if number % 2 else (EDGE,), nodes=60, **given.get("graph", {}))
    two.partition(two.base, folder, parts).close()
    append_rows(folder, two.additions)
    made = specs(two, rng, "time_attr" in given.get("sampling", {}))
    if given.get("deletes"):
        node_type = two.base.schema.node_types[0]
        seeds = {t: np.arange(1, n) for t, n in two.whole.num_nodes.items()}
        delete_rows(folder, nodes={node_type: np.array([0])})
        common: dict[str, Any] = {"num_neighbors": [3, -1], "batch_size": 8}
        made = [LoaderSpec(name="all", seeds=seeds if len(seeds) > 1 else seeds["node"], **common)]
    return two, made, SamplingOptions(with_edge=True, **given.get("sampling", {}))


@pytest.mark.parametrize("kind", EACH_KIND)
@pytest.mark.parametrize(("number", "parts", "servers"), [(0, 1, 1), (1, 3, 2)])
def test_servers_have_the_batches_of_one_process(
    tmp_path: Path, kind: str, number: int, parts: int, servers: int
) -> None:
    _, made, sampling = grown(tmp_path / "base", kind, number, parts)
    base = LocalPartition.open(tmp_path / "base")
    version = open_version(base, "latest")
    with Session(version, sampling, seed=3) as session:
        expected = contents_of(session, made)
    number = version.manifest.of_version
    assert number is not None
    deleted = [version.deleted(t).tolist() for t in range(len(version.schema.node_types))]
    with open_farm("flight") as farm, serving(tmp_path / "base", servers, version=number) as (_, hosted):
        for server in hosted:
            found = contents_of(farm.context(server.address, sampling=sampling), made)
            assert found == expected
            assert server.server.status()["version"] == number
            asked = RemoteGraph(farm.peer(server.address))
            assert asked.manifest == version.manifest
            assert [asked.deleted(t).tolist() for t in range(len(asked.schema.node_types))] == deleted
    assert expected
    version.close()
    base.close()


@pytest.mark.parametrize("kind", EACH_KIND)
@pytest.mark.parametrize(("number", "workers"), [(2, 0), (3, 1)])
def test_hosts_have_the_batches_of_one_process(tmp_path: Path, kind: str, number: int, workers: int) -> None:
    _, made, sampling = grown(tmp_path / "base", kind, number, 3)
    whole = open_version(LocalPartition.open(tmp_path / "base"), "latest")
    options = replace(sampling, num_workers=workers, concurrency=2)

    def rank_of(rank: int, exchange: Any) -> list[Any]:
        base = LocalPartition.open(tmp_path / "base", parts=range(rank, 3, 2))
        with closing(base), closing(open_version(base, "latest")) as version:
            graph = HostsGraph(version, link(rank), "127.0.0.1")
            cache = CacheOptions(bytes="200KB", topology="100KB") if workers else CacheOptions()
            with Session(graph, options, seed=3, ranks=Ranks(rank, 2, exchange), cache=cache) as session:
                found = contents_of(session, made)
                exchange("all done")
                return found

    found = run_ranks(2, rank_of)
    assert any(found)
    for rank in range(2):
        with Session(whole, sampling, seed=3, ranks=Ranks(rank, 2)) as session:
            assert found[rank] == contents_of(session, made)
    whole.close()


@pytest.mark.parametrize("cache", [{"memory": "1GB"}, {"device": "1GB"}])
def test_servers_refuse_copies_that_lack_the_rows(tmp_path: Path, cache: dict[str, str]) -> None:
    grown(tmp_path / "base", "plain", 0, 1)
    with (
        pytest.raises(OptionError, match=rf"cache.{next(iter(cache))}: has no effect on rows that were added"),
        serving(tmp_path / "base", version=1, cache=CacheOptions(**cache)),
    ):
        pass


def test_hosts_with_other_rows_refuse_each_other(tmp_path: Path) -> None:
    two = two_versions(np.random.default_rng(5))
    for name in ("here", "there"):
        two.partition(two.base, tmp_path / name, 2).close()
        append_rows(tmp_path / name, two.additions)
    delete_rows(tmp_path / "there", nodes={"node": np.array([0])})

    def rank_of(rank: int, exchange: Any) -> None:
        base = LocalPartition.open(tmp_path / ("there" if rank else "here"), parts=[rank])
        with closing(base), closing(open_version(base, "latest")) as version:
            Session(HostsGraph(version, link(rank), "127.0.0.1"), seed=3, ranks=Ranks(rank, 2, exchange))

    with pytest.raises(PartitionError, match="Copy one partition folder, with its versions, to all hosts"):
        run_ranks(2, rank_of)


def write_other_header(folder: Path, change: Callable[[Any], object]) -> None:
    """Makes a folder with a version, whose description is changed."""
    grown(folder, "plain", 0, 2)
    path = Versions(folder).place(1) / "delta.json"
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw | {"digest": digest_of(raw)}))


def test_a_version_of_an_earlier_release_is_refused_where_some_parts_are_mapped(tmp_path: Path) -> None:
    write_other_header(tmp_path / "base", lambda raw: raw.pop("overlay"))
    whole, part = (LocalPartition.open(tmp_path / "base", parts=parts) for parts in (None, [1]))
    open_version(whole, 1).close()
    with pytest.raises(PartitionError, match=r"base.versions/1: an earlier release appended this version"):
        open_version(part, 1)
    append_rows(tmp_path / "base", Additions())  # says it of all rows
    with closing(open_version(whole, 2)) as all_parts, closing(open_version(part, 2)) as some:
        assert some.manifest == all_parts.manifest


def test_a_version_of_other_rows_than_were_recorded_is_refused(tmp_path: Path) -> None:
    def change(raw: Any) -> None:
        raw["overlay"]["edges"][0][1] += 1

    write_other_header(tmp_path / "base", change)
    with pytest.raises(
        PartitionError, match=r"part 1 of the version has \d+ edges of type node__to__node, and where it was"
    ):
        open_version(LocalPartition.open(tmp_path / "base", parts=[1]), 1)


def test_a_folder_with_the_manifest_of_a_version_is_refused(tmp_path: Path) -> None:
    grown(tmp_path / "base", "plain", 0, 2)
    with closing(open_version(LocalPartition.open(tmp_path / "base"), "latest")) as version:
        version.manifest.save(tmp_path / "base")
    with pytest.raises(PartitionError, match=r"manifest.json: of_version: no folder has an overlay"):
        LocalPartition.open(tmp_path / "base")
