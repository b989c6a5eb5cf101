"""Further edges of the batches of a GPU: those of the CPU and of brute force, whoever has the rows."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from glt_lightning.base import DataError, PeerError
from glt_lightning.sampling import KHopSampler, SubgraphTask, device_neighbors
from tests.helpers.device_parts import PartsCase, assert_same, sampled, written
from tests.helpers.partitions import small_graph, small_hetero
from tests.helpers.subgraph_cases import check_far_further_edges, check_further_edges
from tests.sampling.test_has_edges import part_of

SCHEDULES = [(1, 0), (1, 3), (4, 0)]
KINDS = ("induced", "bidirectional")
_QUICK = (0, 1, 2, 3, 4, 31)  # the last one has pairs of which all edges weigh 0 at an owner


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed in _QUICK else pytest.mark.slow) for seed in range(120)]
)
def test_random_graphs(kernels, tmp_path, seed):
    kernels.schedule(seed, *SCHEDULES[seed % len(SCHEDULES)])
    check_further_edges(kernels, tmp_path, seed)


@pytest.mark.parametrize("first", [2**31 - 25, 2**32 - 25, 2**40, 2**52])
def test_far_ids(kernels, first):
    check_far_further_edges(kernels, first)


def test_more_pairs_than_numbers(kernels):
    with pytest.raises(DataError, match=r"subgraph_type: \d+ nodes of a batch make more than 2\^63 pairs with"):
        check_far_further_edges(kernels, 2**61)


@pytest.fixture
def case(kernels, tmp_path):
    with closing(PartsCase(kernels, tmp_path, small_hetero(), [[2], [0], [1, 3]])) as case:
        yield case


def config_of(case, kind: str, **options):
    reverse = (2, 1, 0) if kind == "bidirectional" else ()
    options = {"with_edge": kind == "bidirectional"} | options
    return case.config(
        4, 3, subgraph=SubgraphTask(kind=kind, reverse=reverse, limit=options.pop("limit", None)), **options
    )


@pytest.mark.parametrize("kind", KINDS)
def test_owners_are_asked_for_their_rows_alone(case, kernels, monkeypatch, kind):
    """Once per edge type, while the device reads its own rows; nothing is left to the CPU."""
    said, run = [], kernels.run

    def asked(owner, question):
        answer, among = case.remote.answer(owner, question), question.among
        assert (case.remote.owner_of_part[part_of(case.whole, among.rows)] == owner).all()
        assert len(np.unique(among.rows)) == len(among.rows)
        said.append("asked")
        return lambda: said.append("waited") or answer()

    case.remote.instead["induce"] = asked
    monkeypatch.setattr(kernels, "run", lambda name, *arguments: said.append(name) or run(name, *arguments))
    monkeypatch.setattr(device_neighbors.DeviceNeighbors, "ask", None)
    (request,) = case.requests(1)
    config = config_of(case, kind, disjoint=True)
    sample = sampled(case.sampler(config), request)
    questions = [owner for what, owner, *_ in case.remote.asked if what == "induce"]
    types = case.edge_types
    assert sorted(questions) == [1] * types + [2] * types
    last = len(said) - said[::-1].index("asked")
    assert last < said.index("glt_cuda_induce_find") < said.index("waited")
    assert_same(sample, written(KHopSampler(case.whole, config).draft(request)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_beyond_the_limit_is_named_whoever_has_it(kernels, tmp_path, kind):
    """The highest degree is that of a row here, or of one of an owner."""
    for here in (0, 1):
        with closing(PartsCase(kernels, tmp_path / str(here), small_graph(), [[here], [1 - here]])) as case:
            whole, refused = KHopSampler(case.whole, case.config(-1, -1)), []
            degrees = [np.diff(of.indptr).max() for of in whole.source.view._keep[0]]
            (request,) = case.requests(1)
            for limit in (max(degrees), max(degrees) - 1):
                task = SubgraphTask(kind=kind, reverse=(0,) if kind == "bidirectional" else (), limit=int(limit))
                config = case.config(-1, -1, subgraph=task, with_edge=kind == "bidirectional")
                try:
                    case.check(config, [request])
                except DataError as error:
                    refused.append(str(error))
            (message,) = refused
            assert f"has {max(degrees)} edges of edge type 0, more than {max(degrees) - 1}. Raise induced" in message


def test_an_owner_that_lies(case):
    (request,) = case.requests(1)

    def lie(change):
        case.remote.instead["induce"] = lambda *asked: lambda: change(case.remote.answer(*asked)())
        return sampled(case.sampler(config_of(case, "induced")), request)

    for rows in (-1, 2**31 - 1):
        with pytest.raises(DataError, match=r"an owner found edges of edge type [0-2] that the graph does not have"):
            lie(lambda p, rows=rows: replace(p, edge_rows=np.full_like(p.edge_rows, rows)))


def test_an_owner_that_does_not_answer(case):
    def silent():
        raise PeerError("host 1 did not answer.")

    sampler = case.sampler(config_of(case, "induced"))
    (request,) = case.requests(1)
    case.remote.instead["induce"] = lambda *asked: silent
    with pytest.raises(PeerError, match="host 1"):
        sampled(sampler, request)
    case.remote.instead.clear()
    expected = written(KHopSampler(case.whole, config_of(case, "induced")).draft(request))
    assert_same(sampled(sampler, request), expected)
