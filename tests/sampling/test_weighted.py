"""Sampling by weight: the laws of the oracles W1 to W7 of the study of loaders, and what is refused."""

from __future__ import annotations

import json
import logging
from collections import Counter
from contextlib import closing
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch_geometric.data import Data

from glt_lightning.base import DataError, DrawOptions, OptionError, SamplingOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.sampling import BatchRequest, SamplerConfig, k_hop, neighbor_source
from glt_lightning.sampling.drawn_by import ignored_weights, weights_of
from glt_lightning.workers import Message
from glt_lightning.workers.cluster.owner import Owner
from glt_lightning.workers.producer.request_codec import read_config, write_config
from glt_lightning.workers.server.question import Question, read_question
from glt_lightning.workers.transport.message import pack
from tests.helpers.owners import CALLER
from tests.helpers.partitions import gids_of, partitioned, small_hetero
from tests.reference import ops as reference

ROWS = 20_000


def repeated(folder: Path, weights: list[float], rows: int = ROWS, parts: int = 1) -> LocalPartition:
    """Many rows that are all alike: node d + i has the neighbours 0 to d - 1 with these weights."""
    d = len(weights)
    src, dst = np.tile(np.arange(d), rows), d + np.repeat(np.arange(rows), d)
    data = Data(num_nodes=d + rows, edge_index=torch.from_numpy(np.stack([src, dst])))
    data.edge_weight = torch.tensor(weights).repeat(rows)
    return partitioned(data, folder, parts, weights=["edge_weight"])


def picks(whole: LocalPartition, fanout: int, *, key: int = 7, replace: bool = False) -> list[tuple[int, ...]]:
    """The sources that each row picks."""
    gid = gids_of(whole)[0]
    uid, d = np.argsort(gid), int(whole.manifest.num_edges[0] // max(1, _rows(whole)))
    config = SamplerConfig(0, ((fanout,),), replace=replace, weights=("edge_weight",))
    found = k_hop(neighbor_source(whole, config), {0: gid[d:]}, key)
    sources = uid[found.gid[0][found.src[0]]]
    ends = np.searchsorted(found.dst[0], np.arange(len(gid) - d + 1))
    return [tuple(sources[b:e].tolist()) for b, e in pairwise(ends.tolist())]


def _rows(whole: LocalPartition) -> int:
    indptr = np.concatenate([np.diff(whole.view.arrays(0, p).indptr) for p in whole.parts])
    return int((indptr > 0).sum())


W1 = {(0, 1): (17, 360), (0, 2): (8, 105), (0, 3): (1, 9), (1, 2): (9, 56), (1, 3): (7, 30), (2, 3): (13, 35)}


def assert_law(found: Counter, law: dict[tuple[int, ...], Fraction]) -> None:
    assert set(found) <= {k for k, p in law.items() if p}
    total = sum(found.values())
    kept = [(found[k], float(p) * total) for k, p in law.items() if p]
    assert chisquare(*np.array(kept).T).pvalue > 1e-4, found


def test_two_of_four_without_replacement(tmp_path: Path) -> None:
    """W1, found there by enumeration; of the reference and of the kernels."""
    law = {pair: Fraction(*p) for pair, p in W1.items()}
    streams = reference.row_streams(3, 0, 5, torch.arange(4000))
    assert_law(Counter(tuple(reference.pick_weighted(s, [1, 2, 3, 4], 2, False).tolist()) for s in streams), law)
    assert_law(Counter(picks(repeated(tmp_path, [1, 2, 3, 4]), 2)), law)


def test_with_replacement(tmp_path: Path) -> None:
    weights = [1, 0, 5, 2]
    law = {(a, b): Fraction(weights[a] * weights[b] * (1 + (a < b)), 64) for a in range(4) for b in range(4) if a <= b}
    assert_law(Counter(picks(repeated(tmp_path, weights), 2, replace=True)), law)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_a_weight_of_zero_is_never_drawn(tmp_path: Path, dtype: torch.dtype) -> None:
    """W2, a test of PyG (test_neighbor_loader.py), and W5."""
    data = Data(num_nodes=5, edge_index=torch.tensor([[1, 3, 0, 4], [2, 2, 1, 3]]))
    data.edge_weight = torch.tensor([0, 1, 0, 1]).to(dtype)
    whole = partitioned(data, tmp_path, weights=["edge_weight"])
    gid = gids_of(whole)[0]
    for fanout, replace in ((1, False), (1, True), (3, False), (-1, False)):
        config = SamplerConfig(0, ((fanout,),) * 2, replace=replace, weights=("edge_weight",))
        source = neighbor_source(whole, config)
        for key in range(20):
            assert np.argsort(gid)[k_hop(source, {0: gid[[2]]}, key).gid[0]].tolist() == [2, 3, 4]
            assert k_hop(source, {0: gid[[1, 0]]}, key).edges_per_hop.sum() == 0  # all of a row is 0, or there is none


def test_one_heavy_edge(tmp_path: Path) -> None:
    """W3, a test of GLT (test_neighbor_sampler.py), and W4."""
    light = picks(repeated(tmp_path / "w3", [0.1, 0.9], 1000), 1)
    assert 800 < sum(p == (1,) for p in light) < 1000
    found = picks(repeated(tmp_path / "w4", [1, 1, 10**9, 1, 1]), 3)
    assert sum(2 in p for p in found) >= ROWS - 1
    others = Counter(tuple(x for x in p if x != 2) for p in found if 2 in p)
    assert_law(others, {(a, b): Fraction(1, 6) for a in (0, 1, 3, 4) for b in (0, 1, 3, 4) if a < b})


def test_scale_and_equal_weights(tmp_path: Path) -> None:
    """W6: a power of two changes no pick, another factor not the law. W7: equal weights have the law of uniform draws."""
    weights = [0.3, 1.7, 0.0, 2.25, 0.01]
    found = [
        picks(repeated(tmp_path / str(parts), [w * scale for w in weights], 500, parts), 2)
        for parts, scale in ((1, 1.0), (2, 2.0**20))
    ]
    assert found[0] == found[1]
    law = {pair: Fraction(*p) for pair, p in W1.items()}
    for scale in (1.0, 3.0):
        assert_law(Counter(picks(repeated(tmp_path / f"w1-{scale}", [scale * w / 7 for w in (1, 2, 3, 4)]), 2)), law)
    alike = Counter(picks(repeated(tmp_path / "w7", [5.0] * 4), 2))
    assert_law(alike, {(a, b): Fraction(1, 6) for a in range(4) for b in range(4) if a < b})


def masked(folder: Path, parts: int = 1, stored: bool = True) -> LocalPartition:
    """The types of `small_hetero`, with a mask for one edge type."""
    data = small_hetero()
    mask = torch.from_numpy(np.random.default_rng(0).random(900) < 0.5)
    data["paper", "cites", "paper"].seen = mask
    return partitioned(data, folder, parts, weights=["seen"] if stored else None)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_loader(tmp_path: Path, workers: int) -> None:
    """A mask, for one edge type by name; the other is drawn uniformly. A checkpoint resumes only with the same weights."""
    whole = masked(tmp_path, 2)
    spec = LoaderSpec(name="train", split="train", num_neighbors=[3, 2], batch_size=10)
    sampling = {"weight_attr": {"paper__cites__paper": "seen"}, "num_workers": workers}
    mask = small_mask(whole)
    with closing(Session(whole, sampling=sampling, seed=1)) as context:
        loader = context.make_loader(spec)
        batches = list(loader)
        state = loader.state_dict()
    cited = np.concatenate([b["paper", "cites", "paper"].e_id.numpy() for b in batches])
    assert len(cited) > 50
    assert mask[cited].all()
    assert sum(b["author", "writes", "paper"].edge_index.shape[1] for b in batches) > 50
    with closing(Session(whole, seed=1)) as context:
        uniform = context.make_loader(spec)
        assert not mask[np.concatenate([b["paper", "cites", "paper"].e_id.numpy() for b in uniform])].all()
        with pytest.raises(OptionError, match=r"cannot resume: weights: .*'seen'.* in the checkpoint, None now"):
            uniform.load_state_dict(state)
    assert state["plan"]["weights"] == [None, "seen"]


def small_mask(whole: LocalPartition) -> np.ndarray:
    """bool [E] by the user's edge id."""
    seen = np.empty(900, dtype=bool)
    rows = np.arange(900)
    seen[whole.edge_shards(1, "edge_ids").gather(rows)] = whole.edge_shards(1, "seen").gather(rows)
    return seen


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("sen", "'sen': no edge type has it. Attributes of these edges: seen."),
        ({"paper__cites__paper": "x"}, "'x': edges of type paper__cites__paper do not have it"),
        ({"author__writes__paper": "seen"}, "'seen': edges of type author__writes__paper do not have it"),
        ({"a__b__c": "seen"}, "no edge type 'a__b__c'. Edge types: author__writes__paper, paper__cites__paper"),
    ],
)
def test_weights_that_do_not_fit_the_graph(tmp_path: Path, given, said: str) -> None:
    with pytest.raises(OptionError, match=f"sampling.weight_attr: .*{said}"):
        weights_of(masked(tmp_path).manifest, given)


def test_a_folder_without_prefix_sums(tmp_path: Path) -> None:
    manifest = masked(tmp_path, stored=False).manifest
    with pytest.raises(
        OptionError, match=r"has no prefix sums of seen of edge type paper.*partition.weights: \[seen\]"
    ):
        weights_of(manifest, "seen")


@pytest.mark.parametrize("given", [3, "", {}, {"a__b__c": 1}, ["w"]])
def test_options_that_are_no_attribute(given) -> None:
    with pytest.raises(OptionError, match=r"sampling\.weight_attr: expected an edge attribute"):
        SamplingOptions(weight_attr=given)


def test_what_other_processes_ask_for_is_checked(tmp_path: Path) -> None:
    whole = masked(tmp_path)
    good = SamplerConfig(1, ((2, 2),), weights=(None, "seen"))
    written = json.loads(json.dumps(write_config(good)))
    assert read_config(written, 2) == good
    assert DrawOptions.from_wire(good.to_wire()).weights == good.weights
    assert "weights" not in SamplerConfig(1, ((2, 2),)).to_wire()
    for bad in (["seen"], "seen", [1, "seen"]):
        with pytest.raises(DataError, match="weights: expected the name of an attribute, or null"):
            read_config(written | {"weights": bad}, 2)
    request = BatchRequest(0, 1, np.zeros(1, np.int64) + 80, np.zeros(1, np.int64))
    wrong = SamplerConfig(1, ((2, 2),), weights=("seen", None))
    with pytest.raises(DataError, match="edges of type author__writes__paper have no prefix sums of 'seen'"):
        asked = Question(1, wrong, request).to_message("s", 1)
        read_question(Message(json.loads(json.dumps(asked.header)), asked.body), whole.manifest, most_threads=1)
    arrays, body = pack({"1": np.array([80])})
    ask = {"fanouts": [2, 2], "key": 1, "hop": 0, "arrays": arrays, **wrong.to_wire()}
    with closing(Owner(whole, 1 << 12)) as owner, pytest.raises(DataError, match="have no prefix sums of 'seen'"):
        owner.calls["expand"](Message(ask, body), CALLER)


def test_weights_that_are_ignored_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = repeated(tmp_path, [1.0, 2.0], 3)
    with caplog.at_level(logging.INFO, "glt_lightning"):
        with Session(whole) as context:
            context.make_loader(LoaderSpec(name="all", num_neighbors=[-1], batch_size=2))
            context.make_loader(LoaderSpec(name="alone", num_neighbors=[], batch_size=2))
            assert "weight_attr" not in caplog.text  # their batches do not depend on weights
            for name in ("one", "two"):
                context.make_loader(LoaderSpec(name=name, num_neighbors=[2], batch_size=2))
        assert [r.message for r in caplog.records if "weight_attr" in r.message] == [
            ignored_weights(whole.manifest, None)
        ]
        caplog.clear()
        for sampling in ({"weight_attr": "edge_weight"}, {"picker": "tests.helpers.pickers.Uniform"}):
            with Session(whole, sampling=sampling) as context:
                context.make_loader(LoaderSpec(name="one", num_neighbors=[2], batch_size=2))
    assert "weight_attr" not in caplog.text
