"""Pickers and batch samplers of one's own in loaders, whoever makes the batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from glt_lightning.base import (
    ClusterOptions,
    DataError,
    DeadlineOptions,
    GLTError,
    OptionError,
    PickerSpec,
    SamplingOptions,
)
from glt_lightning.graph import LocalPartition
from glt_lightning.loader import LinkSpec, LoaderSpec, Session
from glt_lightning.sampling import k_hop
from glt_lightning.sampling.assemble import assemble
from glt_lightning.workers import HostsGraph, Link, Ranks, ServedGraph
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.pickers import Heaviest, Uniform
from tests.helpers.ranks import run_ranks
from tests.helpers.servers import open_farm

EXAMPLE = Path(__file__).parents[2] / "examples/samplers/induced.py"
SPEC = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=16, shuffle=True)
PICKER = SamplingOptions(picker=Heaviest(), with_edge=True)


def batches(context):
    return [contents(batch) for batch in context.make_loader(SPEC)]


def test_a_graph_server_has_the_picker_that_is_asked_for(tmp_path: Path) -> None:
    whole = partitioned(small_graph(), tmp_path, 2)
    with open_farm("in process") as farm:
        server = farm.serve(whole, picker=PickerSpec.of(Heaviest()))
        with pytest.raises(
            GLTError, match=r"Uniform\(\) version \S+ is asked for, and this process has .*Heaviest"
        ) as info:
            batches(farm.context(server.address, sampling=SamplingOptions(picker=Uniform())))
        assert len(str(info.value).strip().splitlines()) == 1
        plain = farm.serve(whole)
        with pytest.raises(GLTError, match="this process was started without a picker"):
            batches(farm.context(plain.address, sampling=PICKER))


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_ranks_pick_for_each_other(tmp_path: Path, workers: int) -> None:
    whole = partitioned(small_graph(), tmp_path, 2)
    sampling = SamplingOptions(picker=Heaviest(), with_edge=True, num_workers=workers)

    def of_rank(rank, exchange):
        deadlines = DeadlineOptions(call_s=20, reconnect_s=20)
        link = Link(job="test", role="worker", name=f"rank {rank}", token="a-secret-of-this-test", deadlines=deadlines)
        graph = HostsGraph(LocalPartition.open(whole.directory, parts=[rank]), link, "127.0.0.1")
        with Session(graph, sampling, seed=3, ranks=Ranks(rank, 2, exchange)) as context:
            found = batches(context)
            exchange("done")
            return found

    for rank, found in enumerate(run_ranks(2, of_rank)):
        with Session(whole, PICKER, seed=3, ranks=Ranks(rank, 2)) as context:
            assert found == batches(context)


def test_a_checkpoint_resumes_with_the_same_picker_alone(tmp_path: Path) -> None:
    whole = partitioned(small_graph(), tmp_path, 1)
    with Session(whole, PICKER, seed=3) as context:
        loader = context.make_loader(SPEC)
        next(iter(loader))
        state = loader.state_dict()
    with (
        Session(whole, SamplingOptions(with_edge=True), seed=3) as context,
        pytest.raises(OptionError, match=r"cannot resume: picker: '?tests\S+Heaviest.* in the checkpoint, None now"),
    ):
        context.make_loader(SPEC).load_state_dict(state)


def newest_first(request, source):
    """Neighbours by the position of the seeds, and not by the key: the same in each epoch."""
    found = k_hop(source, request.typed_seeds(source.config.seed_type), int(request.input_id.sum()))
    return assemble(source, request, found)


def test_a_function_makes_whole_batches(tmp_path: Path) -> None:
    whole = partitioned(small_graph(), tmp_path, 2)
    with Session(whole, SamplingOptions(batch_sampler=newest_first), seed=3) as context:
        spec = LoaderSpec(name="own", split="train", num_neighbors=[3], batch_size=16)
        loader = context.make_loader(spec)
        first, second = ([contents(batch) for batch in loader] for _ in range(2))
        assert first == second
        np.testing.assert_array_equal(context.read_seeds(spec, "y"), small_graph().y[small_graph().train_mask].numpy())
        state = loader.state_dict()
        with pytest.raises(OptionError, match=r"sampling\.batch_sampler: makes batches of nodes"):
            edges = np.array([[0, 1], [1, 2]])
            context.make_loader(LinkSpec(name="l", edge_label_index=edges, num_neighbors=[2], batch_size=2))
    with Session(whole, seed=3) as context:
        plain = context.make_loader(spec)
        assert [contents(batch) for batch in plain] != first
        with pytest.raises(
            OptionError, match="cannot resume: batch_sampler: 'newest_first' in the checkpoint, None now"
        ):
            plain.load_state_dict(state)


@pytest.mark.parametrize("with_edge", [False, True])
@pytest.mark.parametrize("make", ["finds the edges", "leaves them to the loader"])
def test_induced_batches_of_a_batch_sampler_have_the_same_edge_ids_in_parts(tmp_path, with_edge, make) -> None:
    def with_edges(request, source):
        return assemble(source, request, k_hop(source, request.typed_seeds(0), request.key))

    sampler = run_path(str(EXAMPLE))["induced"] if make == "finds the edges" else with_edges
    whole = partitioned(small_graph(), tmp_path, 2)
    spec, sampling = replace(SPEC, subgraph_type="induced"), SamplingOptions(batch_sampler=sampler, with_edge=with_edge)

    def made(context):
        return [contents(batch) for batch in context.make_loader(spec)]

    def of_rank(rank, exchange):
        link = Link(job="test", role="worker", name=f"rank {rank}", token="a-secret-of-this-test")
        graph = HostsGraph(LocalPartition.open(whole.directory, parts=[rank]), link, "127.0.0.1")
        with Session(graph, sampling, seed=3, ranks=Ranks(rank, 2, exchange)) as context:
            found = made(context)
            exchange("done")
            return found

    ranks = run_ranks(2, of_rank)
    for rank, found in enumerate(ranks):
        plain = SamplingOptions(with_edge=with_edge)
        with (
            Session(whole, sampling, seed=3, ranks=Ranks(rank, 2)) as context,
            Session(whole, plain, seed=3, ranks=Ranks(rank, 2)) as built_in,
        ):
            assert found == made(context)
            if make == "leaves them to the loader":
                assert found == made(built_in)
        with Session(whole, sampling, seed=3, ranks=Ranks(rank, 2)) as context:
            for batch in context.make_loader(spec):
                assert torch.equal(batch.n_id[batch.edge_index], small_graph().edge_index[:, batch.e_id])


def test_edges_of_a_batch_sampler_without_their_rows_are_refused(tmp_path: Path) -> None:
    def without(request, source):
        found = k_hop(source, request.typed_seeds(0), request.key)
        return assemble(source, request, replace(found, edge_row=[None], e_id=[]))

    whole = partitioned(small_graph(), tmp_path, 1)
    sampling = SamplingOptions(batch_sampler=without, with_edge=True)
    with Session(whole, sampling, seed=3) as context, pytest.raises(DataError, match="Give them as edge_row"):
        batches(context)


def test_mistakes_of_a_batch_sampler_are_named(tmp_path: Path) -> None:
    whole = partitioned(small_graph(), tmp_path, 1)
    for function, said in [
        (lambda request, source: 1 / 0, r"<lambda>: failed on batch 0 \(ZeroDivisionError: division by zero\)"),
        (lambda request, source: None, "returned NoneType for batch 0; expected a Draft"),
    ]:
        sampling = SamplingOptions(batch_sampler=function)
        with Session(whole, sampling) as context, pytest.raises(DataError, match=said):
            batches(context)
    with pytest.raises(OptionError, match=r"num_workers 2 leaves sampling to others\. Set sampling\.num_workers to 0"):
        SamplingOptions(batch_sampler=newest_first, num_workers=2)
    with pytest.raises(OptionError, match="batch_sampler: expected a class path, the path of a function"):
        Session(whole, SamplingOptions(batch_sampler=3))
    with pytest.raises(OptionError, match="here a graph server makes the batches"):
        Session(ServedGraph(SimpleNamespace(), ClusterOptions()), SamplingOptions(batch_sampler=newest_first))
