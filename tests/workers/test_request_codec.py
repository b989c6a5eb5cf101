"""The one form of a request, for sampler processes and graph servers."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest

from glt_lightning.base import DataError, PickerSpec
from glt_lightning.kernels import ExcludedEdges, Trees
from glt_lightning.sampling import BatchRequest, ImportanceTask, LinkTask, SamplerConfig, SubgraphTask
from glt_lightning.workers import Message
from glt_lightning.workers.producer.request_codec import read_config, read_request, write_config, write_request
from glt_lightning.workers.server.question import Question
from glt_lightning.workers.transport.message import pack

PLAIN = BatchRequest(3, 2**64 - 5, np.arange(5, 8), np.arange(3))
FULL = replace(
    PLAIN,
    more_seeds={2: np.array([90]), 0: np.zeros(0, dtype=np.int64)},
    extras={
        "label": np.array([[1.5, 0.0]], dtype=np.float32),
        "time": np.array([7, 8, 9]),
        "flags": np.array([True]),
        "half": np.ones(1, dtype=np.float16),
    },
    link={"dst": np.arange(3), "rejected": np.array([65])},
    trees=Trees({2: np.array([3], np.int32)}, until=np.arange(4), since=np.arange(4) - 9),
    excluded=ExcludedEdges({1: (np.array([4, 4, 9]), np.array([7, 8, 0])), 0: (np.array([3]), np.array([3]))}),
)


def arrays_of(request: BatchRequest) -> dict[str, np.ndarray]:
    more = {f"seeds/{t}": gids for t, gids in request.more_seeds.items()}
    for r, pair in () if request.excluded is None else request.excluded.pairs.items():
        more |= {f"excluded/{r}/{end}": ids for end, ids in zip(("dst", "src"), pair, strict=True)}
    more |= {} if request.trees is None else request.trees.to_arrays()
    return {"seeds": request.seeds, "input_id": request.input_id, **more, **request.extras, **request.link}


@pytest.mark.parametrize("request_", [PLAIN, FULL], ids=["plain", "full"])
def test_a_request_comes_back_as_it_was(request_):
    header, body = write_request(request_)
    found = read_request(Message(json.loads(json.dumps(header)), body))
    assert (found.number, found.key) == (request_.number, request_.key)
    got, want = arrays_of(found), arrays_of(request_)
    assert list(got) == list(want)
    for name, array in want.items():
        assert got[name].dtype == array.dtype, name
        np.testing.assert_array_equal(got[name], array, name)
    assert found.nbytes == sum(array.nbytes for array in want.values())


@pytest.mark.parametrize("field", fields(SamplerConfig), ids=lambda field: field.name)
def test_every_field_of_a_configuration_comes_back(field):
    """Also one that is added: it has to be sent, and only where it is not at its default."""
    plain = SamplerConfig(1, ((3, -1), (0, 2)))
    other = {"seed_type": 2, "fanouts": ((1,),), "threads": 4, "most_bytes": 10**12, "aggregate": "mean"}
    other["weights"] = (None, "edge_weight")
    other["more_links"] = (LinkTask(loader="train", edge_type=1), LinkTask(loader="train", edge_type=0, exclude="self"))
    other["link"] = LinkTask(loader="train", edge_type=3, mode="binary", amount=0.5, self_loops=True, reverse=0)
    other["picker"] = PickerSpec("my_module.Picker", '{"share": 0.5}', "1/2", "3")
    other |= {"node_attrs": False, "edge_attrs": False}
    other["subgraph"] = SubgraphTask(kind="bidirectional", limit=9, reverse=(1, -1))
    walks = {"edge_types": (("b", "near", "a"),), "metapaths": ((1, 0),), "walks": 3, "length": 2, "restart": 7}
    other["importance"] = ImportanceTask(**walks, ends=True, self_loops=True)
    changed = replace(plain, **{field.name: other.get(field.name, True)})
    if field.name == "own_batches":  # the only one that is for its own process
        with pytest.raises(DataError, match=r"own_batches: .* makes batches in its own process alone"):
            read_config(json.loads(json.dumps(write_config(changed))))
        return
    for config in (plain, changed):
        assert read_config(json.loads(json.dumps(write_config(config)))) == config
    assert write_config(changed) != write_config(plain)


def test_a_question_is_what_older_servers_read():
    """Names and bytes stay; what is new is an additional field, sent only where it is wanted."""
    config = SamplerConfig(0, ((3, -1),), replace=True, threads=2)
    message = Question(7, config, PLAIN).to_message("s" * 20, 4)
    assert json.loads(json.dumps(message.header)) == {
        "session": "s" * 20,
        "talk": 4,
        "run": 7,
        "number": 3,
        "key": 2**64 - 5,
        "config": {"seed_type": 0, "fanouts": [[3, -1]], "replace": True, "with_edge": False, "threads": 2},
        "arrays": [["seeds", "<i8", [3], 0], ["input_id", "<i8", [3], 64]],
    }
    want = np.zeros(16, dtype=np.int64)
    want[:3], want[8:11] = PLAIN.seeds, PLAIN.input_id
    assert message.body.tobytes() == want.tobytes()
    stored = Question(7, replace(config, stored=True), PLAIN).to_message("s" * 20, 4)
    assert stored.header["config"] == message.header["config"] | {"stored": True}


IDS = np.arange(3)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"seeds": IDS},
            r"arrays: expected the fields input_id, seeds \(optional: excluded/<edge type>, extra/<name>, link/<name>, "
            r"seeds/<node type>, since, tree/<node type>, until\)",
        ),
        ({"seeds": IDS, "input_id": IDS, "tree/x": IDS}, "tree/x: expected tree/<node type>"),
        ({"seeds": IDS, "input_id": IDS, "tree/0": IDS}, r"tree/0: expected int32 \[S\]"),
        ({"seeds": IDS, "input_id": IDS, "time": IDS}, r"got \['input_id', 'seeds', 'time'\]"),
        ({"seeds": IDS, "input_id": IDS, "seeds/x": IDS}, "got .*'seeds/x'"),
        ({"seeds": IDS, "input_id": IDS, "seeds/01": IDS}, "got .*'seeds/01'"),
        ({"seeds": IDS, "input_id": IDS, "extra/a b": IDS}, "got .*'extra/a b'"),
        ({"seeds": IDS, "input_id": IDS, "link/a b": IDS}, "got .*'link/a b'"),
        ({"seeds": IDS, "input_id": IDS[:2]}, "3 seeds, but 2 positions in input_id"),
        (
            {"seeds": IDS, "input_id": IDS, "seeds/1": IDS[:, None]},
            r"seeds/1: expected int64 \[S\], got int64 \[3, 1\]",
        ),
        (
            {"seeds": IDS, "input_id": IDS, "excluded/x": np.stack([IDS, IDS])},
            r"excluded/x: expected excluded/<edge type>",
        ),
        (
            {"seeds": IDS, "input_id": IDS, "excluded/0": IDS},
            r"excluded/0: expected .* int32 or int64 \[2, X\], dst and src",
        ),
        ({"seeds": IDS, "input_id": IDS, "excluded/0": np.stack([IDS[::-1], IDS])}, r"ascending by \(dst, src\)"),
        ({"seeds": IDS.astype(np.int32), "input_id": IDS}, r"seeds: expected int64 \[S\], got int32 \[3\]"),
    ],
)
def test_other_arrays_are_refused(arrays, message):
    entries, body = pack(arrays)
    with pytest.raises(DataError, match=message):
        read_request(Message({"number": 0, "key": 0, "arrays": entries}, body))


LINK = {"loader": "train", "edge_type": 1}


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (3, "link: expected an object with some of amount, attrs, edge_type"),
        ({"loader": "train"}, "link: expected an object with some of"),
        (LINK | {"weights": 1}, "link: expected an object with some of"),
        (LINK | {"edge_type": 2}, "link: edge_type: expected 0 to 1, an edge type, got 2"),
        (LINK | {"reverse": 2}, "link: reverse: expected 0 to 1"),
        (LINK | {"edge_type": True}, "link: edge_type: True is not allowed"),
        (LINK | {"mode": "pairs"}, "link: mode: 'pairs' is not allowed"),
        (LINK | {"amount": 1 << 40}, "link: amount: 1099511627776 is not allowed"),
        (LINK | {"amount": "1"}, "link: amount: '1' is not allowed"),
        (LINK | {"strict": 1}, "link: strict: 1 is not allowed"),
        (LINK | {"loader": "a" * 300}, "link: loader: 'aaa"),
    ],
)
def test_other_tasks_of_loaders_of_edges_are_refused(link, message):
    config = write_config(SamplerConfig(0, ((3, -1),))) | {"link": link}
    with pytest.raises(DataError, match=message):
        read_config(json.loads(json.dumps(config)), 2)


SUBGRAPH = {"kind": "bidirectional", "limit": None, "reverse": [1, -1]}


@pytest.mark.parametrize(
    ("subgraph", "message"),
    [
        (True, "subgraph: expected an object with kind, limit, reverse; got True"),
        (SUBGRAPH | {"further": 1}, "subgraph: expected an object with"),
        (SUBGRAPH | {"kind": "all"}, "subgraph: .*'all'.* is not allowed"),
        (SUBGRAPH | {"limit": 0}, "subgraph: .*'limit': 0.* is not allowed"),
        (SUBGRAPH | {"limit": True}, "is not allowed"),
        (SUBGRAPH | {"reverse": [1, -2]}, "is not allowed"),
        (SUBGRAPH | {"reverse": [1, 2]}, "subgraph: reverse: expected an edge type, or -1, for each"),
        (SUBGRAPH | {"reverse": [1]}, "subgraph: reverse: expected an edge type, or -1, for each"),
        (SUBGRAPH | {"kind": "induced"}, "subgraph: reverse: expected an edge type, or -1, for each"),
    ],
)
def test_other_edges_are_refused(subgraph, message):
    config = write_config(SamplerConfig(0, ((3, -1),))) | {"subgraph": subgraph}
    with pytest.raises(DataError, match=message):
        read_config(json.loads(json.dumps(config)), 2)
