"""Whatever a peer asks the owner of some parts, or of a graph: it answers, refuses in its own words, and goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from glt_lightning.base import MAX_FANOUT, PeerError, RemoteError
from glt_lightning.graph import LocalPartition
from glt_lightning.workers import DTYPES, Peer
from glt_lightning.workers.cluster.graph import GraphService
from glt_lightning.workers.cluster.owner import Owner
from glt_lightning.workers.transport.base import Service
from glt_lightning.workers.transport.message import pack
from tests.helpers.examples import examples
from tests.helpers.in_process import InProcessNetwork
from tests.helpers.partitions import partitioned, small_hetero
from tests.helpers.servers import Farm

REPLY_BYTES = 4096
PAPER, WRITES = 1, 0
EXPAND = {"key": 5, "hop": 1, "fanouts": [3, 2], "replace": False, "with_edge": True}
REFUSALS = {"", "DataError", "WireError", "PartitionError"}  # the last: this graph has a part that nobody has

scalars = st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats(allow_nan=False, allow_infinity=False)
scalars |= st.sampled_from(["node", "edge", "x", "n_id", "edge_ids", "../x", "0", "1"]) | st.text(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
tables = st.tuples(
    st.sampled_from(["node", "edge", "part"]),
    st.integers(-1, 3) | st.booleans(),
    st.lists(st.sampled_from(["x", "y", "n_id", "edge_ids", "indptr", ""]) | st.text(max_size=8), max_size=4),
).map(list)
ids = st.lists(st.integers(0, 300) | st.integers(-(2**63), 2**63 - 1), max_size=8)
many = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def half(tmp_path_factory) -> Iterator[LocalPartition]:
    """One of two parts."""
    folder = partitioned(small_hetero(), tmp_path_factory.mktemp("graph"), 2).directory
    partition = LocalPartition.open(folder, parts=[0])
    yield partition
    partition.close()


@pytest.fixture
def peer(half) -> Iterator[Peer]:
    """Asks an owner, which must work as well in the end as in the beginning."""
    with InProcessNetwork() as network:
        owner, farm = Owner(half, REPLY_BYTES), Farm(network)
        calls = {**owner.calls, **GraphService(half, half.parts).calls}
        server = network.serve("owner:1", Service(lambda hello: {}, calls, {}))
        peer = farm.peer(server.address)
        before = whole_answer(half, peer)
        yield peer
        for name, array in whole_answer(half, peer).items():
            np.testing.assert_array_equal(array, before[name], name)
        farm.close()
        server.close()
        owner.close()


def papers(half: LocalPartition) -> np.ndarray:
    """int32: the nodes of the part, as the manifest numbers them."""
    begin = half.manifest.offsets[PAPER]
    return np.arange(begin, begin + half.manifest.bounds[PAPER][1], dtype=np.int32)


def whole_answer(half: LocalPartition, peer: Peer) -> dict[str, np.ndarray]:
    """What the owner says to questions that are in order."""
    assert peer.ask("here", {}).result().header == {}
    arrays, body = pack({"1": papers(half)[:20]})
    found = dict(peer.ask("expand", {**EXPAND, "arrays": arrays}, body).result().arrays())
    arrays, body = pack({"dst": papers(half)[:20], "src": papers(half)[:20]})
    found |= peer.ask("has_edges", {"edge_type": 1 - WRITES, "arrays": arrays}, body).result().arrays()
    arrays, body = pack({"rows": papers(half)[:20], "members": papers(half)})
    among = peer.ask("induce", {"edge_type": 1 - WRITES, "arrays": arrays}, body).result().arrays()
    found |= {f"among/{name}": array for name, array in among.items()}
    arrays, body = pack({"0": papers(half)[:20]})
    rows = peer.ask("gather", {"tables": [["node", PAPER, ["x", "n_id"]]], "arrays": arrays}, body).result().arrays()
    return {**found, **rows}


def refusal(peer: Peer, op: str, header: Mapping[str, Any], body: np.ndarray) -> tuple[str, str]:
    """(kind, text) of the error with which a call is refused; empty if it is not, or cannot even be sent."""
    try:
        reply = peer.ask(op, header, body).result()
    except RemoteError as error:
        return error.kind, str(error)
    except PeerError:
        return "", ""
    reply.arrays()
    assert op not in ("expand", "gather") or len(reply.body) <= REPLY_BYTES + 64 * (
        1 + len(reply.header.get("arrays", []))
    )
    return "", ""


@many
@given(
    op=st.sampled_from(["expand", "gather", "has_edges", "induce", "here", "info", "split", "edge_split", "seeds"]),
    header=st.dictionaries(
        st.sampled_from(["key", "hop", "fanouts", "first", "tables", "arrays", "edge_type", "name", "node_type"])
        | st.sampled_from(["limit", "weights"])
        | st.text(max_size=8),
        values,
        max_size=8,
    ),
    body=st.binary(max_size=200),
)
def test_any_header(peer, op, header, body):
    assert refusal(peer, op, header, np.frombuffer(body, dtype=np.uint8))[0] in REFUSALS


@many
@given(field=st.sampled_from([*EXPAND, "first", "arrays"]), value=values, with_rows=st.booleans())
def test_neighbours_asked_with_one_wrong_field(peer, half, field, value, with_rows):
    arrays, body = pack({"1": papers(half)[:5]} if with_rows else {})
    assert refusal(peer, "expand", {**EXPAND, "arrays": arrays, field: value}, body)[0] in REFUSALS


@many
@given(
    name=st.sampled_from(["0", "1", "2", "00", "x", "-1", "\u0661", "9" * 5000, ""]) | st.text(max_size=8),
    pairs=st.lists(st.tuples(st.integers(80, 120), st.integers(0, 300) | st.integers(-(2**63), 2**63 - 1)), max_size=8),
    dtype=st.sampled_from(["<i8", "<i8", "<i4", "<u8", "|b1", "<f4"]),
    shape=st.sampled_from([(2, -1), (2, -1), (2, -1), (-1, 2), (-1,), (1, 2, -1)]),
)
def test_any_excluded_edges(peer, half, name, pairs, dtype, shape):
    """Of other types, of nodes that are not here or not at all, in any order."""
    array = np.array(sorted(pairs) if len(pairs) % 2 else pairs, dtype=np.int64).reshape(-1, 2).T.astype(dtype)
    arrays, body = pack({"1": papers(half)[:20], f"excluded/{name}": np.ascontiguousarray(array).reshape(shape)})
    assert refusal(peer, "expand", {**EXPAND, "arrays": arrays}, body)[0] in REFUSALS


def test_no_request_has_an_owner_scan_any_number_of_rows(peer, half):
    dst = np.repeat(papers(half)[0], 70_000)
    arrays, body = pack({"1": papers(half)[:2], "excluded/1": np.stack([dst, np.arange(70_000, dtype=np.int32)])})
    kind, text = refusal(peer, "expand", {**EXPAND, "arrays": arrays}, body)
    assert (kind, "at most 65536 excluded edges, got 70000. Use a smaller batch_size." in text) == ("DataError", True)


@many
@given(
    question=st.lists(st.tuples(tables | values, ids), max_size=4),
    names=st.lists(
        st.sampled_from(["0", "1", "2", "00", "x", "-1", "\u0661"]) | st.text(max_size=8), max_size=4, unique=True
    ),
    dtype=st.sampled_from(DTYPES),
    flat=st.booleans(),
)
def test_any_tables_and_ids(peer, question, names, dtype, flat):
    """Names, dtypes and shapes of the arrays of ids, beside tables that the graph may not have."""
    arrays = {}
    for number, (_, each) in enumerate(question):
        name = names[number] if number < len(names) else str(number)
        array = np.array(each, dtype=np.int64).astype(dtype)
        arrays[name] = array if flat else array[:, None]
    entries, body = pack(arrays)
    header = {"tables": [table for table, _ in question], "arrays": entries}
    assert refusal(peer, "gather", header, body)[0] in REFUSALS
    assert refusal(peer, "expand", {**EXPAND, "arrays": entries}, body)[0] in REFUSALS
    assert refusal(peer, "seeds", {"node_type": PAPER, "arrays": entries}, body)[0] in REFUSALS


@many
@given(edge_type=values, dst=ids, src=ids, dtype=st.sampled_from(DTYPES))
def test_any_pairs(peer, edge_type, dst, src, dtype):
    entries, body = pack({"dst": np.array(dst, dtype=np.int64), "src": np.array(src, dtype=np.int64).astype(dtype)})
    for each in (edge_type, WRITES):
        assert refusal(peer, "has_edges", {"edge_type": each, "arrays": entries}, body)[0] in REFUSALS


@many
@given(
    edge_type=values,
    rows=ids,
    members=ids,
    name=st.sampled_from(["members", "bitmap", "rows"]) | st.text(max_size=8),
    dtype=st.sampled_from(DTYPES),
    limit=values,
)
def test_edges_among_any_nodes(peer, edge_type, rows, members, name, dtype, limit):
    entries, body = pack({"rows": np.array(rows, np.int64), name: np.array(members, np.int64).astype(dtype)})
    for each in ({"edge_type": edge_type}, {"edge_type": WRITES}, {"edge_type": WRITES, "limit": limit}):
        assert refusal(peer, "induce", each | {"arrays": entries}, body)[0] in REFUSALS


PAIRS = {"edge_type": WRITES}
GATHER = {"tables": [["node", PAPER, ["x"]]]}


@pytest.mark.parametrize(
    ("op", "header", "arrays", "message"),
    [
        ("expand", EXPAND | {"fanouts": [3]}, {}, "fanouts: expected 2 integers, got [3]"),
        (
            "expand",
            EXPAND | {"fanouts": [3, True]},
            {},
            f"fanouts: expected an integer from -1 to {MAX_FANOUT}, got True",
        ),
        ("expand", EXPAND | {"fanouts": [3, -2]}, {}, f"fanouts: expected an integer from -1 to {MAX_FANOUT}, got -2"),
        ("expand", EXPAND | {"hop": 16}, {}, "hop: expected an integer from 0 to 15, got 16"),
        ("expand", EXPAND | {"key": 2**64}, {}, "key: expected an integer from 0 to 18446744073709551615"),
        ("expand", EXPAND | {"first": -1}, {}, "first: expected an integer from 0 to"),
        ("expand", EXPAND | {"first": 1}, {}, "first: expected at most 0, the number of picks; got 1"),
        ("expand", EXPAND, {"2": [0]}, "rows: expected arrays named by node types 0 to 1, got '2'"),
        ("expand", EXPAND, {"x": [0]}, "rows: expected arrays named by node types 0 to 1, got 'x'"),
        ("expand", EXPAND, {"1": [10**6]}, "id 1000000 at position 0 is not in the graph"),
        ("expand", EXPAND, {"1": [[1]]}, "ids: expected int32 or int64 [n], got int64 [1, 1]"),
        ("expand", EXPAND, {"1": [0.5]}, "ids: expected int32 or int64 [n], got float64 [1]"),
        ("has_edges", {"edge_type": 2}, {}, "edge_type: expected an integer from 0 to 1, got 2"),
        ("has_edges", {"edge_type": True}, {}, "edge_type: expected an integer from 0 to 1, got True"),
        ("has_edges", PAIRS, {"dst": [80]}, "ids: expected int32 or int64 [n], got nothing"),
        ("has_edges", PAIRS, {"dst": [80.5], "src": [0]}, "ids: expected int32 or int64 [n], got float64 [1]"),
        ("has_edges", PAIRS, {"dst": [80, 80], "src": [0]}, "expected as many dst as src, got 2 and 1"),
        ("has_edges", PAIRS, {"dst": [80], "src": [-1]}, "src: gid -1 at position 0 is no node of type 0"),
        ("has_edges", PAIRS, {"dst": [2**40], "src": [0]}, "dst: gid 1099511627776 at position 0 is no node of type 1"),
        ("induce", PAIRS, {"rows": [80]}, "induce: expected the arrays rows, and members or bitmap; got ['rows']"),
        ("induce", PAIRS, {"rows": [80], "members": [3, 3]}, "members: expected ascending ids from 0 to 79, each once"),
        (
            "induce",
            PAIRS,
            {"rows": [80], "members": [0.5]},
            "induce: members: expected int32 or int64 [n], got float64",
        ),
        (
            "induce",
            PAIRS,
            {"rows": [80], "bitmap": [1]},
            "bitmap: expected uint8 [10], a bit for each node of the source",
        ),
        ("induce", PAIRS, {"rows": [0], "members": []}, "members: expected int32 or int64 [n], got float64 [0]"),
        ("induce", PAIRS | {"limit": -1}, {"rows": [80], "members": [0]}, "limit: expected an integer from 0 to"),
        ("induce", PAIRS | {"limit": 0}, {"rows": [80], "members": [0]}, "induced_limit: node 80 "),
        (
            "induce",
            PAIRS | {"weights": ["x"]},
            {"rows": [80], "members": [0]},
            "weights: expected one for each of 2 edge types, got 1",
        ),
        ("gather", {"tables": 7}, {}, "expected one array of ids per table, got 0 for 7"),
        ("gather", GATHER, {"0": [0], "1": [0]}, "expected one array of ids per table, got 2 for [['node', 1, ['x']]]"),
        ("gather", GATHER, {"1": [0]}, "ids: expected int32 or int64 [n], got nothing"),
        ("gather", GATHER, {"0": [-1]}, "id -1 at position 0 is not in the graph"),
        ("gather", {"tables": [["part", PAPER, ["x"]]]}, {"0": [0]}, 'the graph has no table ["part", 1, ["x"]]'),
        ("gather", {"tables": [["node", 2, ["x"]]]}, {"0": [0]}, 'the graph has no table ["node", 2, ["x"]]'),
        ("gather", {"tables": [["node", True, ["x"]]]}, {"0": [0]}, 'the graph has no table ["node", true, ["x"]]'),
        ("gather", {"tables": [["node", PAPER, ["z"]]]}, {"0": [0]}, 'the graph has no table ["node", 1, ["z"]]'),
        (
            "gather",
            {"tables": [["node", PAPER, ["x", "../x"]]]},
            {"0": [0]},
            'the graph has no table ["node", 1, ["x", "',
        ),
        ("gather", {"tables": [["node", 0, ["x"]]]}, {"0": [0]}, 'the graph has no table ["node", 0, ["x"]]'),
        ("gather", {"tables": [["edge", 0, ["n_id"]]]}, {"0": [0]}, 'the graph has no table ["edge", 0, ["n_id"]]'),
        ("gather", {"tables": [["node", PAPER, "x"]]}, {"0": [0]}, 'the graph has no table ["node", 1, "x"]'),
    ],
)
def test_what_is_wrong_is_said(peer, op, header, arrays, message):
    entries, body = pack({name: np.array(values) for name, values in arrays.items()})
    kind, text = refusal(peer, op, {**header, "arrays": entries}, body)
    assert kind == "DataError"
    assert message in text


def test_rows_of_the_other_part_are_refused(peer, half):
    elsewhere = papers(half)[-1:] + 1
    entries, body = pack({"dst": elsewhere, "src": np.zeros(1, dtype=np.int64)})
    assert refusal(peer, "has_edges", {**PAIRS, "arrays": entries}, body)[0] == "DataError"
    entries, body = pack({"rows": elsewhere, "members": np.zeros(1, dtype=np.int64)})
    assert refusal(peer, "induce", {**PAIRS, "arrays": entries}, body)[0] == "DataError"
    entries, body = pack({"1": elsewhere})
    assert refusal(peer, "expand", {**EXPAND, "arrays": entries}, body)[0] == "DataError"
    entries, body = pack({"0": elsewhere})
    assert refusal(peer, "gather", {**GATHER, "arrays": entries}, body)[0] == "DataError"
