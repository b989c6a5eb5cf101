"""Arrays of the user's own travel with the seeds, untouched, whoever makes the batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from glt_lightning.base import DataError, GLTError, OptionError, SamplingOptions
from glt_lightning.kernels import Kernels
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.sampling import BatchRequest, SamplerConfig
from glt_lightning.workers.producer import on_gpu
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.ranks import run_ranks
from tests.helpers.servers import open_farm
from tests.workers.test_group import open_rank

EXTRAS = {
    "label": np.linspace(0, 1, 150, dtype=np.float32).reshape(50, 3),
    "time": np.arange(50) * 10**12,
    "flag": np.arange(50) % 3 == 0,
    "half": np.arange(50, dtype=np.float16),
}
PLAIN = {"name": "train", "split": "train", "num_neighbors": [3, 2], "batch_size": 16, "shuffle": True}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """Its split ``train`` has 50 papers."""
    return partitioned(small_hetero(), tmp_path_factory.mktemp("graph"), 2)


@pytest.fixture(params=["inline", "sampler process", "server", "gpu"])
def context(request, graph, monkeypatch) -> Iterator[Session]:
    if request.param == "server":
        with open_farm("in process") as farm:
            yield farm.context(farm.serve(graph).address)
        return
    if request.param == "gpu":  # the CPU counts as one
        kernels = request.getfixturevalue("kernels")
        monkeypatch.setattr(on_gpu, "is_gpu", lambda device: True)
        monkeypatch.setattr(Kernels, "open", lambda device: kernels)
    workers = int(request.param == "sampler process")
    with Session(graph, SamplingOptions(num_workers=workers, max_restarts=0), seed=3) as context:
        yield context


def check(batches, plain) -> None:
    """Batches have the rows of their seeds, and else are those without extras."""
    for batch, without in zip(batches, plain, strict=True):
        seeds = batch["paper"]
        for name, values in EXTRAS.items():
            want = torch.from_numpy(values)[seeds.input_id]
            assert seeds[name].dtype == want.dtype, name
            assert torch.equal(seeds[name], want), name
            del seeds[name]
        assert contents(batch) == contents(without)


def test_a_batch_has_the_rows_of_its_seeds(context):
    loader, plain = (context.make_loader(LoaderSpec(**PLAIN, extras=e)) for e in (EXTRAS, {}))
    check(loader, plain)


def test_where_parts_are_remote(graph):
    def found(rank, exchange):
        with open_rank(graph, rank, 2, exchange, SamplingOptions()) as context:
            check(*(context.make_loader(LoaderSpec(**PLAIN, extras=e)) for e in (EXTRAS, {})))
            exchange("all done")
            return True

    assert run_ranks(2, found) == [True, True]


def test_one_node_type(tmp_path):
    graph = partitioned(small_graph(), tmp_path)
    with Session(graph) as context:
        spec = LoaderSpec(
            name="t", seeds=np.array([9, 4, 7]), num_neighbors=[2], batch_size=2, extras={"t": np.arange(3)}
        )
        assert [(b.n_id[: b.batch_size].tolist(), b.t.tolist()) for b in context.make_loader(spec)] == [
            ([9, 4], [0, 1]),
            ([7], [2]),
        ]


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({"label": np.arange(49)}, r"extras: label has the shape \[49\]; expected one row for each of the 50 seeds"),
        ({"label": np.int64(3)}, r"extras: label has the shape \[\]"),
        ({"label": np.array(["a"] * 50)}, "extras: label has dtype <U1; expected numbers or booleans"),
        ({"a label": np.arange(50)}, "extras: expected Python identifiers as names, got 'a label'"),
        ({"x": np.arange(50)}, "extras: batches have x already"),
        ({"n_id": np.arange(50), "input_id": np.arange(50)}, "extras: batches have input_id, n_id already"),
    ],
)
def test_extras_that_do_not_fit(graph, extras, message):
    with Session(graph) as context, pytest.raises(OptionError, match=message):
        context.make_loader(LoaderSpec(**PLAIN, extras=extras))


def test_a_loader_goes_on_only_with_the_same_extras(graph):
    with Session(graph) as context:
        state = context.make_loader(LoaderSpec(**PLAIN, extras=EXTRAS)).state_dict()
        context.make_loader(LoaderSpec(**PLAIN, extras=EXTRAS)).load_state_dict(state)
        for extras in (EXTRAS | {"time": np.arange(50)}, {}):
            with pytest.raises(OptionError, match="extras"):
                context.make_loader(LoaderSpec(**PLAIN, extras=extras)).load_state_dict(state)


def test_a_server_refuses_seeds_that_are_no_nodes(graph):
    with open_farm("in process") as farm:
        producer = farm.producer(farm.peer(farm.serve(graph).address))
        for more, message in (
            ({0: [80]}, "seeds: 80 at position 0 is no node of type 'author'"),
            ({1: [80]}, "seeds/1"),
        ):
            arrays = {t: np.array(gids) for t, gids in more.items()}
            request = BatchRequest(0, 0, np.arange(80, 84), np.arange(4), arrays)
            with pytest.raises((DataError, GLTError), match=message):
                next(producer.stream(SamplerConfig(1, ((3, 2),)), iter([request])))
