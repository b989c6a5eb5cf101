"""``transform``: every batch of a loader goes through a function of the user's, whoever makes the batches."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch_geometric.transforms import NormalizeFeatures

from glt_lightning.base import DataError, OptionError, SamplingOptions
from glt_lightning.loader import LinkSpec, LoaderSpec, Session
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.servers import open_farm

PLAIN = {"name": "train", "split": "train", "num_neighbors": [3, 2], "batch_size": 16, "shuffle": True}
EDGES = np.array([[0, 3, 4, 9], [1, 4, 6, 2]])
HERE = f"{__name__}."


def add_degree(batch):
    """In degrees, from the pointers of an `EdgeIndex` where the edges have them."""
    batch.degree = torch.bincount(torch.as_tensor(batch.edge_index)[1], minlength=batch.num_nodes)
    return batch


class Scaled:
    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, batch):
        changed = batch.clone()
        changed.x = batch.x * self.by
        return changed


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return partitioned(small_graph(), tmp_path_factory.mktemp("graph"), 2)


@pytest.fixture(params=["inline", "sampler process", "server"])
def context(request, graph):
    if request.param == "server":
        with open_farm("in process") as farm:
            yield farm.context(farm.serve(graph).address)
        return
    workers = int(request.param == "sampler process")
    with Session(graph, SamplingOptions(num_workers=workers, max_restarts=0), seed=3) as context:
        yield context


@pytest.mark.parametrize("edge_format", ["tensor", "edge_index_csr"])
def test_every_batch_goes_through_it(context, edge_format):
    spec = PLAIN | {"edge_format": edge_format}
    batches, plain = (
        context.make_loader(LoaderSpec(**spec, transform=transform)) for transform in (f"{HERE}add_degree", None)
    )
    assert len(batches) > 1
    for batch, without in zip(batches, plain, strict=True):
        assert contents(batch) == contents(add_degree(without))


def test_batches_of_edges(context):
    spec = {"name": "l", "edge_label_index": EDGES, "num_neighbors": [2], "batch_size": 3, "neg_sampling": "binary"}
    transform = {"class_path": f"{HERE}Scaled", "init_args": {"by": 2.0}}
    doubled, plain = (context.make_loader(LinkSpec(**spec, transform=t)) for t in (transform, None))
    for batch, without in zip(doubled, plain, strict=True):
        assert contents(batch) == contents(Scaled(2.0)(without))


def test_a_transform_of_pyg(graph):
    with Session(graph) as context:
        found, plain = (context.make_loader(LoaderSpec(**PLAIN, transform=t)) for t in (NormalizeFeatures(), None))
        for batch, without in zip(found, plain, strict=True):
            assert contents(batch) == contents(NormalizeFeatures()(without))


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda batch: batch.absent, r"loader 'train': transform .*<lambda>: failed on batch 0 \(AttributeError"),
        (lambda batch: None, r"transform .*<lambda>: returned NoneType for batch 0; expected a Data or HeteroData"),
        (lambda batch: [batch], "returned list for batch 0"),
    ],
)
def test_errors_name_it(graph, transform, message):
    with Session(graph) as context, pytest.raises(DataError, match=message):
        next(iter(context.make_loader(LoaderSpec(**PLAIN, transform=transform))))


@pytest.mark.parametrize(
    ("transform", "error", "message"),
    [
        (
            ["torch_geometric.transforms.ToUndirected"],
            OptionError,
            r"'train': transform: .*the graph.* is data.transforms",
        ),
        (7, OptionError, "expected one transform of batches: .* got 7"),
        ("no.such.Thing", DataError, "'train': transform: cannot import 'no.such.Thing'"),
        (f"{HERE}PLAIN", DataError, "transform: .*PLAIN is not callable"),
        (f"{HERE}Scaled", DataError, "Scaled needs by"),
        ({"class_path": f"{HERE}Scaled", "init_args": {"bye": 1}}, DataError, "no argument 'bye'.* Did you mean by"),
        (
            {"class_path": f"{HERE}add_degree", "init_args": {"by": 1}},
            DataError,
            "is a function and takes no init_args",
        ),
    ],
)
def test_what_is_no_transform(transform, error, message):
    with pytest.raises(error, match=message):
        LoaderSpec(**PLAIN, transform=transform)
    with pytest.raises(error, match=message):
        LinkSpec(name="train", edge_label_index=EDGES, num_neighbors=[2], batch_size=3, transform=transform)


def test_refused_where_batches_are_completed_later(graph):
    with Session(graph) as context:
        context.device_rows = SimpleNamespace()
        with pytest.raises(OptionError, match=r"transform: with cache.device batches get their rows on cpu"):
            context.make_loader(LoaderSpec(**PLAIN, transform=add_degree))
