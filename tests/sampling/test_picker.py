"""A picker of one's own: the same batches wherever the rows are, and refused where it is no pure function."""

from __future__ import annotations

import inspect
import json
import re
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import CacheOptions, DataError, DrawOptions, OptionError, PickerSpec, SamplingOptions
from glt_lightning.graph import RowDraws, probed
from glt_lightning.kernels import ExcludedEdges, RowView, Trees, pick_uniform
from glt_lightning.kernels.mix import row_streams
from glt_lightning.sampling import BatchRequest, Expand, KHopSampler, OwnedParts, SamplerConfig, k_hop, neighbor_source
from glt_lightning.sampling.drawn_by import drawn_from
from glt_lightning.workers.cluster.owner import Owner
from glt_lightning.workers.cluster.remote_rows import PeerRows
from glt_lightning.workers.producer.request_codec import read_config, write_config
from glt_lightning.workers.transport.base import Service
from tests.helpers.owners import CALLER, make_cache, split_up
from tests.helpers.partitions import gids_of, partitioned, small_graph, small_hetero
from tests.helpers.pickers import Counting, Crowd, Failing, Given, Heaviest, OfTheProcess, Uniform
from tests.helpers.servers import open_farm
from tests.reference.ops import pick_positions


def config_of(whole, picker, fanouts=(4, 3), **changes):
    edge_types, sampling = len(whole.schema.edge_types), SamplingOptions(picker=picker, with_edge=True)
    draw = drawn_from(whole.manifest, sampling.draw, time_attr=changes.pop("time_attr", None))
    seed_type = len(whole.schema.node_types) - 1
    return SamplerConfig(seed_type, tuple((k,) * edge_types for k in fanouts), **{**draw.values, **changes})


def request_of(whole, excluded=None, trees=None):
    """The same seeds, however the graph is cut."""
    ids = np.array([5, 9, 9, 17, 3, 60, 31, 44])
    return BatchRequest(0, 77, gids_of(whole)[-1][ids], np.arange(len(ids)), excluded=excluded, trees=trees)


def arrays_of(sampler, request):
    return {name: array.copy() for name, array in sampler.draft(request).values().items()}


def equal(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def timed_graph():
    data = small_graph()
    data.time = data.edge_attr[:, 0].long() % 50
    return data


def test_streams_and_draws_are_those_of_the_built_in_sampler():
    """Against the plain rule, row by row."""
    rng = np.random.default_rng(0)
    degree, counts = rng.integers(0, 30, 200), rng.integers(0, 12, 200)
    uid, key = rng.integers(0, 2**40, 200), int(rng.integers(0, 2**63)) * 2 + 1
    for trees in (None, rng.integers(0, 9, 200)):
        stream = row_streams(key, 3, 2**64 - 5, uid, trees)
        found = np.split(pick_uniform(degree, counts, stream), np.cumsum(np.minimum(counts, degree))[:-1])
        for i in range(len(uid)):
            (plain,) = (
                pick_positions(
                    _tensor(stream[i : i + 1].view(np.int64)), _tensor(degree[i : i + 1]), int(counts[i]) or -2, False
                )
                if counts[i]
                else ([],)
            )
            assert found[i].tolist() == list(map(int, plain))


def _tensor(array):
    import torch

    return torch.from_numpy(np.ascontiguousarray(array))


@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize("disjoint", [False, True])
def test_a_picker_with_the_built_in_rule_gives_the_built_in_batches(tmp_path: Path, make, disjoint: bool) -> None:
    whole = partitioned(make(), tmp_path, 2)
    own = config_of(whole, Uniform(), (4, -1, 2), disjoint=disjoint)
    r = len(whole.schema.edge_types) - 1
    edges = k_hop(neighbor_source(whole, replace(own, picker=None)), {own.seed_type: request_of(whole).seeds}, 77)
    pairs = edges.gid[-1][edges.dst[r]][::3], edges.gid[int(whole.view.src_types[r])][edges.src[r]][::3]
    for excluded in (None, ExcludedEdges.of({r: pairs})):
        request = request_of(whole, excluded)
        expected = arrays_of(KHopSampler(whole, replace(own, picker=None)), request)
        equal(arrays_of(KHopSampler(whole, own), request), expected)


def test_edges_of_another_time_are_no_entries(tmp_path: Path) -> None:
    whole = partitioned(timed_graph(), tmp_path, 2, time_attr="time")
    own = config_of(whole, Uniform(), disjoint=True, time_attr="time")
    bounds = Trees(until=np.array([3, 9, 30, 49, 0, 12, 25, 25]), since=np.array([0, 5, 1, 20, 0, 12, 20, 0]))
    for trees in (bounds, Trees(until=bounds.until)):
        request = request_of(whole, trees=trees)
        expected = arrays_of(KHopSampler(whole, replace(own, picker=None)), request)
        assert expected["edge/0/e_id"].size
        equal(arrays_of(KHopSampler(whole, own), request), expected)


def expected_of(data, folder, picker, **changes):
    whole = partitioned(data, folder, 1)
    return arrays_of(KHopSampler(whole, config_of(whole, picker, **changes)), request_of(whole))


@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize("disjoint", [False, True])
def test_the_same_over_the_wire_and_from_cached_lists(tmp_path: Path, make, disjoint: bool) -> None:
    """Also in replies of a few picks; attributes are read where the rows are."""
    expected = expected_of(make(), tmp_path, Heaviest(), disjoint=disjoint)
    whole = partitioned(make(), tmp_path, 3)
    config, request = config_of(whole, Heaviest(), disjoint=disjoint), request_of(whole)
    here, direct = split_up(whole, [[1], [0], [2]])
    with closing(make_cache(here, direct, CacheOptions(bytes=200_000, topology=90_000, policy="degree"))) as cache:
        assert cache.topology.num_nodes
        cached = KHopSampler(here, config, remote=direct, cache=cache)
        equal(arrays_of(cached, request), expected)
        assert cached.source.local.counters.cached_frontier_rows
    with ExitStack() as opened, open_farm("in process") as farm:
        peers = []
        for number, partition in enumerate(direct._owners):
            owner = opened.enter_context(closing(Owner(partition, 200, picker=PickerSpec.of(Heaviest()))))
            service = Service(lambda hello: {}, owner.calls, {})
            peers.append(farm.peer(opened.enter_context(closing(farm.transport.serve(f"o:{number}", service))).address))
        remote = PeerRows(direct.owner_of_part, peers)
        equal(arrays_of(KHopSampler(here, config, remote=remote), request), expected)
        assert remote.traffic.round_trips > 12


def test_encoded_attributes_are_decoded_everywhere(tmp_path: Path) -> None:
    """int8, also in cached lists."""
    data, expected = small_graph(), None
    for parts in (1, 3):
        whole = partitioned(data, tmp_path, parts, storage={"edge_attr": "int8"})
        config, request = config_of(whole, Heaviest()), request_of(whole)
        if expected is None:
            expected = arrays_of(KHopSampler(whole, config), request)
            continue
        here, direct = split_up(whole, [[1], [0, 2]])
        with closing(make_cache(here, direct, CacheOptions(bytes=200_000, topology=90_000, policy="degree"))) as cache:
            equal(arrays_of(KHopSampler(here, config, remote=direct, cache=cache), request), expected)


@pytest.mark.parametrize("picker", [Counting, Crowd])
def test_what_is_not_pure_is_refused(tmp_path: Path, picker) -> None:
    """At the start, on made-up rows, and by the rows that are picked twice."""
    whole, name = partitioned(small_graph(), tmp_path, 1), f"tests.helpers.pickers.{picker.__name__}"
    said = rf"{picker.__name__}\(\) version 0/\w+ is not a pure function: asked twice"
    with pytest.raises(DataError, match=said):
        config_of(whole, name)
    rows = RowDraws.of_parts(whole, SamplingOptions(picker=name).draw).of(0, gids_of(whole)[0], 4, 1, 0)
    rows.rows.is_first = False  # one of a thousand rows, of 300
    rows.count()
    rows = replace(rows, batch_key=next(key for key in range(100) if _picked_twice(rows, key)))
    with pytest.raises(DataError, match=said):
        rows.count()


def _picked_twice(rows, key):
    view, _ = rows.rows.rows(0, rows.gids, 0, None, None)
    return (row_streams(key, 0, int(rows.rows.view.keys[0]), view.uid) % 1000 == 0).any()


@pytest.mark.parametrize(
    ("counts", "positions", "said"),
    [
        ([1], [0], r"returned int64 \[1\] and int64 \[1\]; expected counts, int \[2\]"),
        ([1, 1], [0], r"as many positions as they add up to"),
        ([-1, 2], [0], "not negative"),
        ([0.5, 0.5], [0], r"returned float64 \[2\]"),
        ([1, 1], [0, 99], r"picked position 99 of a row with \d+ entries \(node 9\); expected 0 to"),
        ([1, 1], [-1, 0], r"picked position -1 of a row with \d+ entries \(node 5\)"),
    ],
)
def test_wrong_answers_are_named(tmp_path: Path, counts, positions, said: str) -> None:
    whole = partitioned(small_graph(), tmp_path, 1)
    draw = SamplingOptions(picker=Given(counts, positions)).draw
    rows = RowDraws.of_parts(whole, draw).of(0, gids_of(whole)[0][[5, 9]], 4, 1, 0)
    with pytest.raises(DataError, match=f"sampling.picker: tests.helpers.pickers.Given.*{said}"):
        rows.picks()


def test_an_exception_names_the_picker_and_what_there_is(tmp_path: Path) -> None:
    whole = partitioned(small_graph(), tmp_path, 1)
    with pytest.raises(
        DataError, match=r"pickers.Failing\(\) version \S+ failed \(KeyError: .*no attribute 'no_such'; they"
    ):
        KHopSampler(whole, config_of(whole, Failing())).draft(request_of(whole))


def test_an_owner_answers_for_its_own_picker_alone(tmp_path: Path) -> None:
    whole = partitioned(small_graph(), tmp_path, 1)
    asked = probed(PickerSpec.of(Heaviest()), whole.manifest)
    cases = [
        (None, asked, r"this process was started without a picker. Give this process the sampling.picker"),
        (Heaviest("other"), asked, r'asked for, and this process has tests\S+Heaviest\({"attr": "other"}\) version 2/'),
        (Uniform(), asked, r"this process has tests.helpers.pickers.Uniform\(\) version 0/"),
        (Heaviest(), replace(asked, version="1/x"), "version 1/x is asked for, and this process has .* version 2/"),
        (
            Heaviest(),
            replace(asked, probe="of another process"),
            "picks other neighbours here than in the process that asks",
        ),
    ]
    for own, spec, said in cases:
        ask = {"fanouts": [2], "key": 1, "hop": 0, "arrays": [], **DrawOptions(picker=spec).to_wire()}
        with closing(Owner(whole, 1 << 12, picker=PickerSpec.of(own))) as owner, pytest.raises(DataError, match=said):
            owner.calls["expand"](_message(ask), CALLER)


def _message(header):
    from glt_lightning.workers import Message
    from glt_lightning.workers.transport.message import EMPTY

    return Message(json.loads(json.dumps(header)), EMPTY)


def test_nothing_is_imported_for_another_process(tmp_path: Path) -> None:
    """A class path from the wire is compared, and never imported."""
    whole = partitioned(small_graph(), tmp_path, 1)
    spec = PickerSpec("os.system", '{"command": "touch x"}', "0", "0")
    ask = {"fanouts": [2], "key": 1, "hop": 0, "arrays": [], **DrawOptions(picker=spec).to_wire()}
    with closing(Owner(whole, 1 << 12)) as owner, pytest.raises(DataError, match="started without a picker"):
        owner.calls["expand"](_message(ask), CALLER)
    for bad in ("os.system", {"class_path": "os.system"}, {**spec.to_wire(), "version": 3}):
        with pytest.raises(DataError, match="picker: expected arguments, class_path, probe, version, all text"):
            DrawOptions.from_wire(ask | {"picker": bad})


def test_what_depends_on_the_process_is_found_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = partitioned(small_graph(), tmp_path, 1)
    config = config_of(whole, OfTheProcess())
    monkeypatch.setattr("os.getpid", lambda: 4_000_003)
    with pytest.raises(DataError, match="picks other neighbours here"):
        KHopSampler(whole, config)


def test_a_config_with_a_picker_travels(tmp_path: Path) -> None:
    whole = partitioned(small_graph(), tmp_path, 1)
    config = config_of(whole, Heaviest())
    assert read_config(json.loads(json.dumps(write_config(config))), 1) == config
    assert config.identity["picker"].startswith('tests.helpers.pickers.Heaviest({"attr": "edge_attr"}) version 2/')
    assert "picker" not in SamplerConfig(0, ((2,),)).to_wire()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"replace": True}, "replace: True has no effect with sampling.picker"),
        ({"weight_attr": "w"}, "weight_attr: 'w' has no effect with sampling.picker"),
        ({"topology": "device"}, "sampling.picker: runs on CPUs, and here GPUs sample"),
        ({"num_workers": 1, "worker_devices": ["cuda:0"]}, "sampling.picker: runs on CPUs, and here GPUs sample"),
    ],
)
def test_options_that_do_not_go_with_a_picker(given, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        SamplingOptions(picker=Heaviest(), **given)


def test_pickers_that_cannot_be_named() -> None:
    counting = Counting()
    with pytest.raises(OptionError, match=r"Counting has attributes \(calls\) that other processes cannot be told"):
        SamplingOptions(picker=counting)
    for given, said in [
        ("no_module.Picker", "cannot import 'no_module.Picker'"),
        ("json.dumps", "json.dumps is not a class"),
        ("json.JSONDecoder", "has no method pick"),
        ({"class_path": "tests.helpers.pickers.Heaviest", "init_args": {"atr": "x"}}, "has no argument 'atr'"),
    ]:
        with pytest.raises(DataError, match=rf"sampling\.picker: .*{said}"):
            _ = SamplingOptions(picker=given).draw


def test_the_picker_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "own-samplers.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Heaviest" in block)
    names = {"__name__": "my_module"}
    sys.modules["my_module"] = types.ModuleType("my_module")  # which dataclass looks for
    try:
        exec(code, names)
    finally:
        del sys.modules["my_module"]
    weights = np.array([3.0, 9.0, 5.0, 1.0, 1.0])
    rows = RowView("a__to__b", 0, np.array([4, 2, 8]), np.array([3, 0, 2]), ["edge_weight"], lambda name: weights)
    counts, positions = names["Heaviest"]().pick(rows, 2, np.zeros(3, np.uint64))
    assert (counts.tolist(), positions.tolist()) == ([2, 0, 2], [1, 2, 0, 1])


def test_a_gpu_that_samples_refuses(tmp_path: Path) -> None:
    whole = partitioned(small_graph(), tmp_path, 1)
    with pytest.raises(OptionError, match=r"sampling\.picker: runs on CPUs, and here a GPU samples"):
        neighbor_source(whole, config_of(whole, Uniform()), store=object())


def test_the_source_is_read_once_however_many_threads_ask(monkeypatch):
    """CPython 3.11 cannot parse sources in several threads at once."""
    read, kind = [], type("Own", (Uniform,), {"__module__": __name__, "__qualname__": "Own"})
    monkeypatch.setitem(globals(), "Own", kind)
    monkeypatch.setattr(inspect, "getsource", lambda of: read.append(of) or "source")
    options = SamplingOptions(picker={"class_path": f"{__name__}.Own"})
    with ThreadPoolExecutor(8) as pool:
        draws = list(pool.map(lambda _: options.draw, range(64)))
    assert read == [kind]
    assert len(set(draws)) == 1


def test_too_many_entries_for_a_picker_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = partitioned(small_graph(), tmp_path, 1)
    picker = probed(PickerSpec.of(Heaviest()), whole.manifest)
    monkeypatch.setattr("glt_lightning.sampling.questions.expand._MOST_SEEN", 64)
    asked = Expand(1, 0, (4,), DrawOptions(picker=picker), {0: gids_of(whole)[0]})
    said = r"see all [\d,]+ neighbours of the \d+ rows of a request; at most 1 are allowed. Use a smaller"
    with pytest.raises(DataError, match=said):
        OwnedParts(whole, picker=picker).answer(asked)
