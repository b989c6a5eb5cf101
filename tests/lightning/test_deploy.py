"""An endpoint answers as `predict` does, whatever else is asked at the same time, and its answers can be replayed."""

from __future__ import annotations

import gc
import itertools
import json
import os
import re
import signal
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from lightning.pytorch import Trainer

import glt_lightning as glt
from glt_lightning.base import EDGE, DataError, DeployOptions, OptionError
from glt_lightning.lightning import PredictionWriter, deploy, predict_new, read_predictions, replay
from glt_lightning.lightning.endpoint.question import Question
from glt_lightning.lightning.endpoint.queue import Request, RequestQueue
from glt_lightning.lightning.endpoint.served_graph import AskedRows
from glt_lightning.partition import Additions, NewEdges, NewNodes, append_rows, delete_rows
from glt_lightning.workers import HostedServer, ServerPlan
from tests.helpers.asgi import Reply, request
from tests.helpers.servers import DEADLINES, cluster, of_clients
from tests.lightning.serving import free_addresses, serving
from tests.lightning.tiny import NODES, WIDTH, learnable_graph

pytest.importorskip("starlette", reason="an endpoint needs the extra deploy: pip install glt-lightning[deploy]")
pytest.importorskip("uvicorn", reason="an endpoint needs the extra deploy: pip install glt-lightning[deploy]")
pytest.importorskip("prometheus_client", reason="an endpoint needs the extra deploy: pip install glt-lightning[deploy]")

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
SAMPLED: dict[str, Any] = {"evaluation": {"num_neighbors": [3, 3]}, "sampling": {"seed": 3}}
Ask = Callable[..., Reply]


class Moody(glt.NodePredictor):
    """Fails for nodes 13 and 16, and computes for a while for node 14."""

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        asked = batch.n_id[: batch.batch_size].tolist()
        if 13 in asked:
            raise RuntimeError("13 is unlucky")
        if 16 in asked:
            raise DataError("the labels are gone")
        if 14 in asked:
            time.sleep(1.0)
        return super().predict_step(batch, batch_idx)


def talking(
    trainer: Trainer, model: Any, data: Any, talk: Callable[[Any, Ask], None], ckpt_path: Any = None, **options: Any
) -> None:
    """Runs an endpoint in this thread, and ``talk`` in another one, until that returns."""
    from glt_lightning.lightning.endpoint.app import make_app

    @contextmanager
    def listen(endpoint: Any) -> Iterator[None]:
        ask = partial(request, make_app(endpoint))
        with ThreadPoolExecutor(1) as threads:
            said = threads.submit(talk, endpoint, ask)
            said.add_done_callback(lambda _: endpoint.queue.close())
            yield
            said.result()

    deploy(trainer, model, data, ckpt_path=ckpt_path, options=options, listen=listen)


def model_of(data: Any, kind: type = glt.NodePredictor) -> Any:
    data.prepare_data()
    torch.manual_seed(1)
    return kind(data.num_features, data.label_facts, hidden_channels=8, num_layers=2)


def columns_of(reply: Reply) -> dict[str, list[Any]]:
    assert reply.status == 200, reply.text
    rows = reply.json()["predictions"]
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_the_whole_way(make_data: Any, make_trainer: Any, tmp_path: Path, capfd: Any) -> None:
    model = model_of(make_data(**SAMPLED))
    ids = [7, 3, 200]
    own = {"seeds": {"splits": {"test": ids}}, "evaluation": {"num_neighbors": [3, 3], "predict_split": "test"}}
    make_trainer(callbacks=[PredictionWriter(str(tmp_path / "out"))]).predict(
        model, make_data(**SAMPLED | own), return_predictions=False
    )
    expected = read_predictions(tmp_path / "out")
    graph = learnable_graph()
    rows = {"x": graph["x"][:2] + 1, "y": np.array([-1, -1])}
    edges = np.array([[0, 1, NODES, 5], [NODES, NODES, NODES + 1, NODES + 1]])
    later = predict_new(
        model, make_data(**SAMPLED), nodes={"node": rows}, edges={"node__to__node": edges}, trainer=make_trainer()
    )
    question = {
        "nodes": {"node": [{"x": each.tolist()} for each in rows["x"]]},
        "edges": [{"source": int(s), "destination": int(d)} for s, d in edges.T],
        "embedding": True,
    }

    def talk(endpoint: Any, ask: Ask) -> None:
        reply = ask("/predict", {"ids": ids})
        found = columns_of(reply)
        order = [expected["n_id"].tolist().index(each) for each in ids]
        assert found["id"] == ids
        assert found["pred"] == expected["pred"][order].tolist()
        assert found["probability"] == expected["probability"][order].tolist()  # to the bit
        facts = reply.json()
        assert "embedding" not in found
        assert len(columns_of(ask("/predict", {"ids": ids, "embedding": True}))["embedding"]) == 3
        assert facts["key"] == str(endpoint.graph.key)
        assert facts["version"] == 0
        assert re.fullmatch("[0-9a-f]{32}", facts["model"])
        assert columns_of(ask("/predict", {"ids": ids, "key": facts["key"]})) == found
        other = ask("/predict", {"ids": ids, "key": 1}).json()
        assert other["sample"] != facts["sample"]
        assert columns_of(ask("/predict", {"ids": ids, "num_neighbors": [1]}))["probability"] != found["probability"]

        new = columns_of(ask("/predict", question))
        assert new["id"] == later["n_id"].tolist()
        assert new["probability"] == later["probability"].tolist()
        assert np.shape(new["embedding"]) == (2, 8)
        assert columns_of(ask("/predict", {"ids": ids})) == found  # the graph is as before
        streams = [pa.table({"x": list(rows["x"])}), pa.table({"source": edges[0], "destination": edges[1]})]
        names = ({"table": "nodes:node", "embedding": "true"}, {"table": "edges:node__to__node"})
        body = b"".join(streamed(each.replace_schema_metadata(name)) for each, name in zip(streams, names, strict=True))
        assert columns_of(ask("/predict", body, ARROW | {"accept": "application/json"})) == new

        arrow = ask("/predict", streamed(pa.table({"id": ids})), ARROW)
        answer = pa.ipc.open_stream(arrow.body).read_all()
        assert answer.to_pylist() == reply.json()["predictions"]
        assert json.loads(answer.schema.metadata[b"sample"]) == facts["sample"]

        some = ask("/predict", {"ids": [7, "x", NODES, 3]}).json()
        assert [("pred" in row, row.get("error", {}).get("row")) for row in some["predictions"]] == [
            (True, None),
            (False, 1),
            (False, 2),
            (True, None),
        ]
        assert some["errors"][0]["field"] == "ids"

        with ThreadPoolExecutor(8) as threads:  # each as if it were alone
            at_once = list(threads.map(lambda i: columns_of(ask("/predict", {"ids": [i, i + 1]})), range(30)))
        for i, each in enumerate(at_once):
            alone = columns_of(ask("/predict", {"ids": [i, i + 1]}))
            assert each["pred"] == alone["pred"]
            assert np.allclose(each["probability"], alone["probability"], atol=1e-6)
        metrics = ask("/metrics").text
        assert 'glt_requests_total{status="200"}' in metrics
        assert "glt_graph_version 0.0" in metrics
        assert re.search(r'glt_rows_read_total\{place="local"\} [1-9]', metrics)
        (count,), (total,) = (
            re.findall(rf"^glt_batch_requests_{what} (\S+)", metrics, re.M) for what in ("count", "sum")
        )
        assert float(count) < float(total)  # some were computed together
        assert ask("/health").json()["status"] == "ok"
        assert "ids" in ask("/openapi.json").json()["components"]["schemas"]["Question"]["properties"]
        assert "num_neighbors" in ask("/docs").text

    record = tmp_path / "record.jsonl"
    talking(make_trainer(), model, make_data(**SAMPLED), talk, record=str(record))
    assert model.embeddings is False  # as before
    found = replay(make_trainer(), model, make_data(**SAMPLED), record, alone=True)
    assert found.equal, found
    assert found.answers > 60 > found.batches / 2

    lines = [json.loads(line) for line in record.read_text().splitlines()]
    lines[0]["requests"][0]["columns"]["probability"][0][0] += 2e-6
    lines[1]["requests"][0]["key"] = "12345"
    record.write_text("".join(json.dumps(line) + "\n" for line in lines[:2]))
    found = replay(make_trainer(), model, make_data(**SAMPLED), record, alone=True)
    assert (found.samples, found.predictions, found.alone) == (1, 2, 2)
    with torch.no_grad():
        model.head.bias += 1
    with pytest.raises(DataError, match=r"line 1: answered by another model"):
        replay(make_trainer(), model, make_data(**SAMPLED), record)
    record.write_text("{}\n")
    with pytest.raises(DataError, match=r"line 1: not a batch of a record"):
        replay(make_trainer(), model, make_data(**SAMPLED), record)


def test_who_samples() -> None:
    """The thread of the model, as long as it has nothing to do; other ones while it has, and what takes long."""
    threads: dict[Any, str] = {}

    def sample(question: Question) -> AskedRows:
        threads[question.key] = threading.current_thread().name
        return AskedRows({}, np.arange(1), [], SimpleNamespace(config=None), "node", False, 0, 0)  # type: ignore[arg-type]

    queue = RequestQueue(sample, DeployOptions(), is_quick=lambda question: question.key != 2)
    idle = threading.Event()

    def ask() -> None:
        for key in range(4):
            request = Request(b"", "", Question(ids=[7], key=key))
            while key < 3 and not queue._idle:
                time.sleep(0.001)
            queue.put(request)
            if key == 0:
                idle.wait(10)  # the model computes
                queue.put(Request(b"", "", Question(ids=[7], key=9)))
            request.future.result(10)
        queue.close()

    with ThreadPoolExecutor(1, "ask") as asking:
        asked, answered = asking.submit(ask), []
        for batch in queue.batches():
            idle.set()
            if not answered:
                while 9 not in threads:
                    time.sleep(0.001)
            for request in batch:
                answered.append(request.question.key)
                request.answer(None)
        asked.result()
    queue.abandon(RuntimeError())
    here = threading.current_thread().name
    assert sorted(answered) == [0, 1, 2, 3, 9]
    assert (threads[0], threads[1]) == (here, here)
    assert threads[2].startswith("sample")
    assert threads[9].startswith("sample")


def test_an_answered_request_is_forgotten() -> None:
    """At once: its sample would fill memory until garbage is collected, which a large process does rarely."""
    rows: list[Any] = []

    def sample(question: Question) -> AskedRows:
        found = AskedRows({}, np.arange(1), [], SimpleNamespace(config=None), "node", False, 0, 0)  # type: ignore[arg-type]
        rows.append(weakref.ref(found))
        return found

    queue = RequestQueue(sample, DeployOptions())
    gc.disable()
    try:
        queue.put(Request(b"", "", Question(ids=[7])))
        for batch in queue.batches():
            batch.pop().answer(None)
            queue.close()
        queue.abandon(RuntimeError())
        assert rows[0]() is None
    finally:
        gc.enable()


def test_times(make_data: Any, make_trainer: Any, tmp_path: Path) -> None:
    """Each seed is asked about at its own time, as `predict` does, and an error says when times are missing."""
    graph = learnable_graph()
    edge_time = np.random.default_rng(2).integers(0, 100, graph["edge_index"].shape[1])
    np.savez(tmp_path / "timed.npz", **graph, edge_time=edge_time)
    given = SAMPLED | {"dataset": str(tmp_path / "timed.npz"), "sampling": {"seed": 3, "time_attr": "edge_time"}}
    given |= {"partition": {"time_attr": "edge_time"}, "evaluation": {"num_neighbors": [3, 3], "predict_split": "test"}}
    ids, times = [7, 3, 200], [20, 90, 50]
    given |= {"seeds": {"splits": {"test": ids}, "input_time": {"test": times}}}
    data = make_data(**given)
    model = model_of(data)
    writer = PredictionWriter(str(tmp_path / "out"))
    make_trainer(callbacks=[writer]).predict(model, data, return_predictions=False)
    rows = read_predictions(tmp_path / "out")
    expected = rows["probability"][[rows["n_id"].tolist().index(each) for each in ids]].tolist()

    def talk(endpoint: Any, ask: Ask) -> None:
        found = columns_of(ask("/predict", {"ids": ids, "times": times}))
        assert found["probability"] == expected
        assert columns_of(ask("/predict", {"ids": ids, "times": [0, 0, 0]})) != found
        for question in ({"ids": ids}, {"nodes": {"node": [{"x": [0.0] * WIDTH}]}, "times": []}):
            missing = ask("/predict", question)
            assert missing.status == 422
            assert "times: node has no times of its own: expected one for each id or pair" in missing.text

    talking(make_trainer(), model, make_data(**given), talk)


BAD: list[tuple[Any, int, str]] = [
    (b"{", 400, "the body is no JSON"),
    (b"[" * 3000, 400, "the body is no JSON"),
    ([1], 400, "expected a JSON object"),
    ({"id": [1]}, 422, "id: unknown; expected any of ids, pairs"),
    ({"ids": 3}, 422, "ids: expected a list"),
    ({"ids": []}, 422, "ids: expected some ids, pairs or new nodes"),
    ({"ids": [True, None, [1], 1.5]}, 422, "ids: True is no id of a node of type 'node'"),
    ({"ids": [1], "node_type": "paper"}, 422, "node_type: expected node, got 'paper'"),
    ({"pairs": [[1, 2]]}, 422, "pairs: this model predicts nodes, not edges"),
    ({"pairs": [[1, 2, 3]]}, 422, "pairs: expected \\[source, destination\\]"),
    ({"ids": [1], "num_neighbors": [3, 3, 3, 3]}, 422, "1 to 3 fan-outs"),
    ({"ids": [1], "num_neighbors": [-1]}, 422, "fan-outs of 1 to 50"),
    ({"ids": [1], "key": 1 << 64}, 422, "key: expected a number of 64 bits"),
    ({"ids": [1], "times": [5]}, 422, "times: this model does not draw neighbours by time"),
    ({"ids": [1], "times": ["a"]}, 422, "times: expected integers"),
    ({"ids": [*range(50)]}, 413, "at most 20 are answered"),
    ({"ids": ["a" * 5000]}, 413, "more than 4000 bytes"),
    ({"nodes": {"paper": [{"x": [1.0]}]}}, 422, "nodes: expected rows of node"),
    ({"nodes": [{"x": [1.0]}]}, 422, "x of node type 'node': expected"),
    ({"nodes": [5]}, 422, "nodes: expected an object with columns"),
    ({"nodes": [{"x": [0.0] * WIDTH}, {"x": [0.0]}]}, 422, "x of node type 'node': expected"),
    ({"nodes": [{"x": [0.0] * WIDTH}], "edges": [{"source": 0}]}, 422, "expected the columns source and destination"),
]

LONG = 1 << 24  # rows that take no bytes
ARROWS: list[tuple[pa.Table, str | None, int, str]] = [
    (pa.table({"id": [1, 2, 3]}), None, 200, "probability"),
    (pa.table({"id": [1, 2, 3]}), "zstd", 415, "not compressed"),
    (pa.table({"id": [1, 2, 3]}), "lz4", 415, "not compressed"),
    (pa.table({"id": pa.nulls(LONG)}), None, 413, "at most 20 are answered"),
    (pa.table({"id": pa.array([None], pa.list_(pa.null(), 1 << 20))}), None, 422, "expected numbers, text, times"),
    (pa.table({"id": pa.array(["a", "a"]).dictionary_encode()}), None, 422, "expected numbers, text, times"),
    (pa.table({"name": [1]}), None, 400, "unknown column 'name'; expected id"),
    (pa.table({"x": [[0.0] * WIDTH]}).replace_schema_metadata({"table": "nodes:node"}), None, 200, "probability"),
    (
        pa.table({"x": [[0.0] * WIDTH]}).replace_schema_metadata({"table": "rows:node"}),
        None,
        400,
        "a table is named rows:node",
    ),
]


def streamed(table: pa.Table, codec: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_requests_that_are_refused(make_data: Any, make_trainer: Any, tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "api.key").write_text("k" * 20 + "\n")
    key = {"authorization": "Bearer " + "k" * 20}

    def talk(endpoint: Any, ask: Ask) -> None:
        for given, status, said in BAD:
            reply = ask("/predict", given, key)
            assert (reply.status, bool(re.search(said, reply.json()["error"]["message"]))) == (status, True), reply.text
        stray = {
            "nodes": [{"x": [0.0] * WIDTH}],
            "edges": [{"source": NODES, "destination": 999}, {"source": 0, "destination": 1}],
        }
        refused = ask("/predict", stray, key)  # the only new node is at a bad edge
        assert (refused.status, refused.json()["error"]["field"]) == (422, "edges.node__to__node")
        stray["nodes"] = stray["nodes"] * 2
        found = ask("/predict", stray, key).json()
        assert ["pred" in row for row in found["predictions"]] == [False, True]
        assert [(each["field"], each["row"]) for each in found["errors"]] == [("edges.node__to__node", 0), ("ids", 0)]
        assert ask("/predict", b"x", key | {"content-type": "text/csv"}).status == 415
        assert ask("/predict", b"x", key | ARROW).json()["error"]["message"].startswith("the body is no Arrow stream")
        for table, codec, status, said in ARROWS:
            reply = ask("/predict", streamed(table, codec), key | ARROW)
            assert (reply.status, said in reply.text) == (status, True), reply.text
        for wrong in ({}, {"x-api-key": "k" * 19}, {"authorization": "Basic " + "k" * 20}):
            for path, given in (("/predict", {"ids": [1]}), ("/metrics", None), ("/docs", None)):
                assert ask(path, given, wrong).status == 401
        assert ask("/health").status == 200
        assert ask("/predict", {"ids": [1]}, {"x-api-key": "k" * 20}).status == 200

        failed = ask("/predict", {"ids": [13]}, key)
        assert (failed.status, failed.json()["error"]["message"]) == (
            500,
            "the request failed: RuntimeError: 13 is unlucky",
        )
        caplog.clear()
        failed = ask("/predict", {"ids": [16]}, key)  # the fault of the model, whatever error it raises
        assert (failed.status, "DataError: the labels are gone" in failed.text) == (500, True)
        assert "a request failed" in caplog.text
        assert "the labels are gone" in caplog.text
        assert gc.get_freeze_count()  # a collection among all objects of the process would stop the answers
        with ThreadPoolExecutor(8) as threads:  # while 14 is computed the others come together, and 13 takes none down
            slow = threads.submit(ask, "/predict", {"ids": [14]}, key)
            time.sleep(0.3)
            several = [threads.submit(ask, "/predict", {"ids": [i]}, key) for i in (12, 13, 15)]
            assert slow.result().status == 200
            assert [each.result().status for each in several] == [200, 500, 200]
            slow = threads.submit(ask, "/predict", {"ids": [14]}, key)
            time.sleep(0.3)
            several = [threads.submit(ask, "/predict", {"ids": [i]}, key) for i in range(6)]
            replies = [each.result() for each in several]
            full = [each for each in replies if each.status == 503]
            assert len(full) == 3  # of 4 that are taken one is 14
            assert "4 requests are in work" in full[0].json()["error"]["message"]
            assert full[0].headers["retry-after"] == "1"
            slow.result()
        endpoint.queue.close()
        stopping = ask("/predict", {"ids": [1]}, key)
        assert (stopping.status, ask("/health").status) == (503, 503)
        assert "is stopping" in stopping.text

    limits = {"max_rows": 20, "max_body": 4000, "max_waiting": 4, "api_key_file": str(tmp_path / "api.key")}
    data = make_data(**SAMPLED)
    talking(make_trainer(), model_of(data, Moody), data, talk, **limits)
    assert not gc.get_freeze_count()

    def patience(endpoint: Any, ask: Ask) -> None:
        late = ask("/predict", {"ids": [14]})
        assert (late.status, "no answer within 0.5 s" in late.text) == (503, True)
        assert "takes more than 3KB" in ask("/predict", {"ids": [*range(20, 100)]}).text

    data = make_data(**SAMPLED)
    talking(make_trainer(), model_of(data, Moody), data, patience, timeout_s=0.5, max_sample="3KB")


def test_new_versions_are_answered_from(make_data: Any, make_trainer: Any, tmp_path: Path) -> None:
    data = make_data(**SAMPLED, partition={"version": "latest"})
    model = model_of(data)
    record = tmp_path / "record.jsonl"

    def talk(endpoint: Any, ask: Ask) -> None:
        before = ask("/predict", {"ids": [7]}).json()
        assert ask("/predict", {"ids": [NODES]}).status == 422
        row = {"x": np.full((1, WIDTH), 9, np.float32)}
        edges = NewEdges(np.stack([np.full(20, NODES), np.full(20, 7)]))  # node 7 gets another neighbourhood
        append_rows(data.partition_dir, Additions({"node": NewNodes(1, row)}, {("node", "to", "node"): edges}))
        until = time.monotonic() + 60
        while ask("/health").json()["version"] == 0 and time.monotonic() < until:
            time.sleep(0.05)
        after = ask("/predict", {"ids": [7, NODES]}).json()
        assert (before["version"], after["version"]) == (0, 1)
        assert before["predictions"][0]["probability"] != after["predictions"][0]["probability"]
        assert "glt_graph_version 1.0" in ask("/metrics").text
        on_top = {"nodes": [{"x": [1.0] * WIDTH}], "edges": [{"source": NODES, "destination": NODES + 1}]}
        assert ask("/predict", on_top).json()["predictions"][0]["id"] == NODES + 1
        delete_rows(data.partition_dir, nodes={"node": np.array([NODES, 0])})
        while ask("/health").json()["version"] == 1 and time.monotonic() < until:
            time.sleep(0.05)
        last = ask("/predict", {"ids": [7, NODES, 0]}).json()
        assert last["version"] == 2
        assert last["predictions"][0]["probability"] == before["predictions"][0]["probability"]
        assert [each.get("id") for each in last["predictions"] if "error" not in each] == [7]
        assert [each["error"]["row"] for each in last["predictions"] if "error" in each] == [1, 2]

    talking(make_trainer(), model, data, talk, record=str(record), poll_s=0.05)
    found = replay(make_trainer(), model, make_data(**SAMPLED), record, alone=True)
    assert found.equal, found
    assert found.answers == 4


def test_a_thousand_answers_are_replayed(make_data: Any, make_trainer: Any, tmp_path: Path) -> None:
    """Of eight clients at a time, while rows are appended; some bring rows of their own."""
    data = make_data(**SAMPLED, partition={"version": "latest"})
    model, record = model_of(data), tmp_path / "record.jsonl"
    numbers = np.random.default_rng(0)
    questions = [{"ids": numbers.integers(NODES, size=1 + i % 3).tolist()} for i in range(1000)]
    questions[::10] = [{"nodes": [{"x": numbers.random(WIDTH).tolist()}]} for _ in range(100)]
    answered: Counter[int] = Counter()
    growing, versions = threading.Lock(), itertools.count(1)

    def talk(endpoint: Any, ask: Ask) -> None:
        def grow(version: int) -> None:
            node = NewNodes(1, {"x": numbers.random((1, WIDTH), np.float32)})
            edges = np.stack([np.full(40, NODES + version - 1), numbers.integers(NODES, size=40)])
            append_rows(data.partition_dir, Additions({"node": node}, {EDGE: NewEdges(edges)}))
            until = time.monotonic() + 60
            while ask("/health").json()["version"] < version and time.monotonic() < until:
                time.sleep(0.02)

        def answer(i: int) -> int:
            if i % 250 == 249:
                with growing:
                    grow(next(versions))
            return int(ask("/predict", questions[i]).json()["version"])

        with ThreadPoolExecutor(8) as threads:
            answered.update(threads.map(answer, range(1000)))

    talking(make_trainer(), model, data, talk, record=str(record), poll_s=0.02)
    assert sum(answered.values()) == 1000
    assert set(answered) == {0, 1, 2, 3, 4}
    found = replay(make_trainer(), model, make_data(**SAMPLED), record)
    assert found.equal, found
    assert found.answers == 1000


SHOP = {
    "users": ["name,age,kind", *(f"u-{i},{i % 9},{'ab'[i % 2]}" for i in range(30))],
    "items": ["title,price", *(f"{i},{i % 7}" for i in range(20))],
    "buys": ["who,what", *(f"u-{i % 29},{(7 * i + i // 29) % 20}" for i in range(120))],
}
TABLES = {
    "nodes": {
        "user": {
            "path": "users.csv",
            "id": "name",
            "features": ["age", "kind"],
            "encode": {"age": "number", "kind": "one_hot"},
        },
        "item": {"path": "items.csv", "id": "title", "features": ["price"]},
    },
    "edges": {"user__buys__item": {"path": "buys.csv", "source": "who", "destination": "what"}},
}


def test_pairs_and_rows_of_tables(make_trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, lines in SHOP.items():
        Path(f"{name}.csv").write_text("\n".join(lines) + "\n")
    Path("pairs.csv").write_text("who,what\nu-3,5\nu-29,19\nu-0,0\n")
    given: dict[str, Any] = {
        "dataset": TABLES,
        "root": "root",
        "undirected": True,
        "num_neighbors": [3, 3],
        "task": "link",
    }
    given |= {"links": {"edge_splits": {"num_val": 0.1, "num_test": 0.1}}, "seeds": {"input_type": "user__buys__item"}}
    given |= {"sampling": {"seed": 3}, "batch_size": 9}
    sampled = {"num_neighbors": [3, 3]}
    data = glt.GLTDataModule(**given, evaluation=sampled)
    data.prepare_data()
    torch.manual_seed(1)
    facts = {"metadata": data.metadata, "edge_type": data.link_type, "num_nodes": data.num_nodes}
    model = glt.LinkPredictor(data.num_features, hidden_channels=8, num_layers=2, decoder="mlp", **facts)
    by_file = glt.GLTDataModule(**given, evaluation=sampled | {"predict_edges": "pairs.csv"})
    make_trainer(callbacks=[PredictionWriter("out")]).predict(model, by_file, return_predictions=False)
    expected = read_predictions("out")

    def talk(endpoint: Any, ask: Ask) -> None:
        pairs = [["u-3", 5], ["u-29", "19"], ["u-0", 0]]
        found = columns_of(ask("/predict", {"pairs": pairs}))
        assert [found["source"], found["destination"]] == [[p[0] for p in pairs], [p[1] for p in pairs]]
        assert expected["id"].tolist() == ["u-0", "u-3", "u-29"]
        assert [found["score"][at] for at in (2, 0, 1)] == expected["score"].tolist()  # to the bit
        some = ask("/predict", {"pairs": [["u-3", 5], ["u-3", "u-3"], ["x", 5]]}).json()
        assert ["score" in row for row in some["predictions"]] == [True, False, False]
        assert [(each["field"], each["row"]) for each in some["errors"]] == [("pairs", 1), ("pairs", 2)]
        user = columns_of(ask("/predict", {"ids": ["u-3"], "node_type": "user"}))
        item = columns_of(ask("/predict", {"ids": [5, 6], "node_type": "item"}))
        assert (np.shape(user["embedding"]), np.shape(item["embedding"])) == ((1, 8), (2, 8))
        assert "node_type: expected user or item" in ask("/predict", {"ids": ["u-3"]}).text

        new = {
            "nodes": {"user": [{"name": "new", "age": 3, "kind": "b"}]},
            "edges": {"user__buys__item": [{"who": "new", "what": 4}]},
        }
        scored = columns_of(ask("/predict", {**new, "pairs": [["new", 5], ["u-3", 5]]}))
        assert len(scored["score"]) == 2
        assert "is no id of a node of type 'user'" in ask("/predict", {"pairs": [["new", 5]]}).text
        with monkeypatch.context() as without:
            without.delattr(glt.LinkPredictor, "embed")
            reply = ask("/predict", {"ids": ["u-3"], "node_type": "user"})
            assert (reply.status, reply.json()["error"]["field"]) == (422, "ids")
            assert "has no method embed for nodes. Ask for pairs" in reply.text
        row = {"name": "odd", "age": "many", "kind": None}
        rows = [{"name": "p", "age": 3, "kind": "zz"}, row, {"name": "q", "age": None, "kind": "a"}]
        edges = [{"who": "p", "what": 999}, {"who": "q", "what": 3}]
        reply = ask(
            "/predict",
            {
                "nodes": {"user": rows},
                "edges": {"user__buys__item": edges},
                "pairs": [[n, 5] for n in ("p", "odd", "q")],
            },
        )
        found = reply.json()
        assert ["score" in each for each in found["predictions"]] == [False, False, True], reply.text
        faults = {(each["field"], each["row"]) for each in found["errors"]}
        assert faults == {("pairs", 0), ("pairs", 1), ("nodes.user.age", 1), ("edges.user__buys__item.what", 0)}
        assert "/" not in next(each["message"] for each in found["errors"] if each["field"] == "nodes.user.age")
        again = {"nodes": {"user": [{"name": "u-3", "age": 3, "kind": "b"}]}, "pairs": [["u-3", 5]]}
        assert "id 'u-3' is in the graph already" in ask("/predict", again).text
        unknown = {"nodes": {"users": rows}, "pairs": [["p", 5]]}
        assert "nodes: expected rows of item, user" in ask("/predict", unknown).text

    talking(make_trainer(), model, data, talk, record="record.jsonl")
    found = replay(make_trainer(), model, glt.GLTDataModule(**given, evaluation=sampled), "record.jsonl", alone=True)
    assert found.equal, found
    assert found.answers == 7


@pytest.mark.slow
@pytest.mark.parametrize("version", [0, 1])
def test_graph_servers_have_the_same_answers(make_data: Any, make_trainer: Any, version: int) -> None:
    data = make_data(**SAMPLED, partition={"num_parts": 2, "version": version})
    data.prepare_data()
    if version:
        new = {"x": np.ones((1, WIDTH), np.float32), "y": np.zeros(1, np.int64)}
        edges = NewEdges(np.array([[0, NODES], [NODES, 7]]))
        append_rows(data.partition_dir, Additions(nodes={"node": NewNodes(1, new)}, edges={EDGE: edges}))
    model = model_of(data)
    said: list[Any] = []

    def talk(endpoint: Any, ask: Ask) -> None:
        with ThreadPoolExecutor(4) as threads:
            found = list(
                threads.map(lambda i: ask("/predict", {"ids": [i, 7]}).json(), [*range(6), NODES - 1 + version])
            )
        assert {each["version"] for each in found} == {version}
        said.append([(each["sample"], each["predictions"][0]["pred"], each["graph"]) for each in found])
        assert (ask("/predict", {"nodes": [{"x": [0.0] * WIDTH}]}).status == 200) == (not data_of)

    data_of: list[Any] = []
    talking(make_trainer(), model, data, talk)
    with serving(data.partition_dir, servers=2, version=version) as (where, _):
        data_of.append(glt.GLTDataModule(num_neighbors=[5, 5], batch_size=20, cluster=where, **SAMPLED))
        talking(make_trainer(strategy="glt_server_client"), model, data_of[0], talk)
    assert said[0] == said[1]


@pytest.mark.slow
def test_a_graph_server_may_restart(make_data: Any, make_trainer: Any) -> None:
    data = make_data(**SAMPLED)
    model = model_of(data)
    where = cluster(servers=free_addresses(1), deadlines=replace(DEADLINES, reconnect_s=1.0))
    plan = ServerPlan(address=where.servers[0], directory=str(data.partition_dir), cluster=where)
    servers = [HostedServer(plan)]

    def talk(endpoint: Any, ask: Ask) -> None:
        before = columns_of(ask("/predict", {"ids": [3, 7]}))
        for _ in range(2):
            servers[0].close()
            for _ in range(2):
                refused = ask("/predict", {"ids": [3, 7]})
                assert (refused.status, "server 0" in refused.text) == (503, True), refused.text
            servers[0] = HostedServer(plan)
            assert columns_of(ask("/predict", {"ids": [3, 7]})) == before

    try:
        served = glt.GLTDataModule(num_neighbors=[5, 5], batch_size=20, cluster=of_clients(where), **SAMPLED)
        talking(make_trainer(strategy="glt_server_client"), model, served, talk)
    finally:
        servers[0].close()


@pytest.mark.slow
def test_samplers_of_a_graph_server_may_be_killed(make_data: Any, make_trainer: Any) -> None:
    """While requests come, again and again: each answer is that of before, or 503 with the reason."""
    data = make_data(**SAMPLED)
    model = model_of(data)
    questions = [{"ids": [i, 7]} for i in range(8)]
    killed: list[int] = []

    def talk(endpoint: Any, ask: Ask) -> None:
        before = [columns_of(ask("/predict", each)) for each in questions]

        def kill() -> None:
            for turn in range(40):
                pids = servers[0].server.status()["samplers"]["pids"]
                killed.extend(pids)
                for pid in pids:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.01 if turn < 30 else 0.2)  # also faster than they can start

        with ThreadPoolExecutor(5) as threads:
            killing, number = threads.submit(kill), 0
            while not killing.done():
                for expected, reply in zip(before, threads.map(partial(ask, "/predict"), questions), strict=True):
                    number += 1
                    assert reply.status in (200, 503), reply.text
                    if reply.status == 503:
                        assert re.search("sampler|server", reply.text), reply.text
                    else:
                        close(columns_of(reply), expected)
            killing.result()
        assert number >= len(questions)
        until = time.monotonic() + 60
        while ask("/predict", questions[0]).status != 200 and time.monotonic() < until:
            time.sleep(0.1)
        assert [columns_of(ask("/predict", each)) for each in questions] == before

    with serving(data.partition_dir) as (where, servers):
        served = glt.GLTDataModule(num_neighbors=[5, 5], batch_size=20, cluster=where, **SAMPLED)
        talking(make_trainer(strategy="glt_server_client"), model, served, talk)
    assert len(set(killed)) > 1


def close(found: dict[str, list[Any]], expected: dict[str, list[Any]]) -> None:
    """The bits of products depend on the requests that were computed together."""
    assert found["id"] == expected["id"]
    np.testing.assert_allclose(found["probability"], expected["probability"], atol=1e-6)


def test_what_cannot_be_deployed(make_data: Any, make_trainer: Any, make_model: Any) -> None:
    def refused(said: str, model: Any = None, data: Any = None, **options: Any) -> None:
        data = data or make_data(**SAMPLED)
        with pytest.raises(OptionError, match=said):
            deploy(make_trainer(), model or model_of(data), data, options=options, listen=lambda _: None)

    refused("predict_step of the model: expected a dictionary", model=Plain())
    refused("a row for each of 1 seeds, got \\[2\\]", model=Plain(rows=2))
    refused("sampling.aggregate_first", data=make_data(sampling={"aggregate_first": "mean"}))
    refused("data.new: requests bring", data=make_data(new={"nodes": "new.csv"}))
    refused("expected a GLTDataModule, got Trainer", model=make_model(), data=make_trainer())
    refused("endpoint.max_rows: expected an integer >= 1", max_rows=0)
    refused("endpoint: expected any of host, port.*Did you mean max_rows", max_row=3)
    refused("endpoint.api_key_file: required where others can connect \\(host 0.0.0.0\\)", host="0.0.0.0")


class Plain(glt.GraphSAGE):
    """Predicts what no endpoint can name."""

    def __init__(self, rows: int = 0) -> None:
        super().__init__(WIDTH, 3, hidden_channels=4, num_layers=2)
        self.rows = rows

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return {"pred": torch.zeros(self.rows)} if self.rows else torch.zeros(1)
