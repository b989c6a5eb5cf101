"""``python -m lightning deploy`` and ``replay``, from a YAML file to answers over the network, with the usual wrong turns."""

from __future__ import annotations

import json
import re
import signal
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from glt_lightning.cli import main
from tests.helpers import Run, started
from tests.helpers.certificates import Authority
from tests.lightning.test_new_rows import CONFIG, LATER, split_tables
from tests.lightning.test_tables_encode import write_tables

pytest.importorskip("starlette", reason="an endpoint needs the extra deploy: pip install glt-lightning[deploy]")
pytest.importorskip("prometheus_client", reason="an endpoint needs the extra deploy: pip install glt-lightning[deploy]")

GIVEN = ["--config", "papers.yaml", "--trainer.accelerator", "cpu", "--trainer.logger", "false"]
SAMPLED = ["--data.evaluation.num_neighbors", "[3, 3]", "--data.partition.version", "latest"]
LISTENS = re.compile(r"endpoint: (https?)://(\S+)/predict")
LIMIT_S = 200.0
PAGE = (Path(__file__).parents[2] / "docs" / "after-training.md").read_text()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("papers")
    write_tables(folder)
    split_tables(folder)
    (folder / "papers.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        main(["fit", "--config", "papers.yaml", "--trainer.max_epochs", "1", "--trainer.accelerator", "cpu"])
    return folder


@pytest.fixture
def papers(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return trained


def command(name: str, *args: object) -> list[str]:
    return [sys.executable, "-m", "glt_lightning", name, *GIVEN, *SAMPLED, "--ckpt_path", "best", *map(str, args)]


def address_of(run: Run) -> str:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and run.popen.poll() is None:
        if found := LISTENS.search(run.output):
            return f"{found[1]}://{found[2]}"
        time.sleep(0.05)
    raise AssertionError(f"the endpoint does not listen:\n{run.output}")


def ask(address: str, path: str, given: Any = None, context: Any = None, **headers: str) -> Any:
    data = None if given is None else json.dumps(given).encode()
    asked = urllib.request.Request(f"{address}{path}", data, {"content-type": "application/json", **headers})
    with urllib.request.urlopen(asked, timeout=60, context=context) as reply:
        body = reply.read().decode()
    return json.loads(body) if body.startswith("{") else body


@pytest.mark.slow
def test_from_yaml_to_answers(papers: Path) -> None:
    with started(
        command("deploy", "--port", 0, "--endpoint.record", "record.jsonl", "--endpoint.poll_s", "0.2"), cwd=papers
    ) as run:
        address = address_of(run)
        assert address.startswith("http://127.0.0.1:")
        found = ask(address, "/predict", {"ids": ["P-000", "P-001"], "embedding": True})
        assert [row["id"] for row in found["predictions"]] == ["P-000", "P-001"]
        assert {row["class"] for row in found["predictions"]} <= {"biology", "chemistry", "physics"}
        assert len(found["predictions"][0]["embedding"]) == 64
        known, new = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
        assert [row["id"] for row in ask(address, "/predict", known)["predictions"]] == known["ids"]
        (row,) = ask(address, "/predict", new)["predictions"]
        assert row["id"] == "N-1"
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(address, "/predict", {"ids": ["P-299"]})
        assert "is no id of a node of type 'paper'" in refused.value.read().decode()

        rows = ["--nodes", "paper=later/papers.csv", "--edges", "author__writes__paper=later/writes.csv"]
        main(["append", "--config", "papers.yaml", *rows, "paper__in__venue=later/appears.csv"])
        until = time.monotonic() + LIMIT_S
        while ask(address, "/health")["version"] == 0 and time.monotonic() < until:
            time.sleep(0.1)
        later = ask(address, "/predict", {"ids": LATER})
        assert (later["version"], len(later["predictions"])) == (1, len(LATER))
        assert "glt_graph_version 1.0" in ask(address, "/metrics")
        run.popen.send_signal(signal.SIGTERM)
        assert run.wait(LIMIT_S) == 0, run.output
        assert "Traceback" not in run.output
    with started(command("replay", "--record", "record.jsonl", "--alone", "true"), cwd=papers) as run:
        assert run.wait(LIMIT_S) == 0, run.output
        assert (
            "replay: record.jsonl: 4 answers of 4 batches: samples and predictions are equal, bit for bit" in run.output
        )


@pytest.mark.slow
def test_beyond_loopback_with_key_and_certificate(papers: Path, tmp_path: Path) -> None:
    made = Authority().certificates("127.0.0.1")
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "cert", "key")}
    for name, path in files.items():
        path.write_bytes(getattr(made, name))
    (tmp_path / "api.key").write_text("s3cret" * 4)
    secured = ["--endpoint.api_key_file", tmp_path / "api.key", "--endpoint.tls_cert", files["cert"]]
    with started(
        command("deploy", "--port", 0, "--host", "0.0.0.0", *secured, "--endpoint.tls_key", files["key"]), cwd=papers
    ) as run:
        port = address_of(run).rpartition(":")[2]
        address, context = f"https://127.0.0.1:{port}", ssl.create_default_context(cafile=str(files["ca"]))
        assert ask(address, "/health", context=context)["status"] == "ok"
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(address, "/predict", {"ids": ["P-000"]}, context)
        assert refused.value.status == 401
        found = ask(address, "/predict", {"ids": ["P-000"]}, context, authorization="Bearer " + "s3cret" * 4)
        assert found["predictions"][0]["id"] == "P-000"
        run.popen.send_signal(signal.SIGKILL)  # nothing of it stays, which the leak police sees
        run.popen.wait(10)


def said_by(capsys: pytest.CaptureFixture[str], name: str, *args: object) -> str:
    capsys.readouterr()
    with suppress(SystemExit):
        main([name, *GIVEN, *map(str, args)])
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, captured.err
    return lines[0]


@pytest.mark.slow
def test_wrong_turns_are_one_line(papers: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    best = ["--ckpt_path", "best"]
    assert "deploy: no checkpoint is given" in said_by(capsys, "deploy")
    assert "there is no file 'bset'. Did you mean best?" in said_by(capsys, "deploy", "--ckpt_path", "bset")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = said_by(capsys, "deploy", *best, "--port", port)
        assert f"endpoint.port: 127.0.0.1:{port}: Address already in use. Choose another one with --port" in said
    assert "endpoint.api_key_file: required where others can connect" in said_by(
        capsys, "deploy", *best, "--host", "0.0.0.0"
    )
    Path("api.key").write_text("short")
    key = ["--endpoint.api_key_file", "api.key"]
    assert "endpoint.tls_cert: a certificate is required" in said_by(capsys, "deploy", *best, "--host", "0.0.0.0", *key)
    assert "expected at least 16 ASCII characters, got 5" in said_by(capsys, "deploy", *best, "--port", 0, *key)
    both = ["--endpoint.tls_cert", "papers.csv", "--endpoint.tls_key", "papers.csv"]
    assert "endpoint.tls_cert, tls_key: cannot be used" in said_by(capsys, "deploy", *best, "--port", 0, *both)
    assert "endpoint.port: expected 0 to 65535" in said_by(capsys, "deploy", *best, "--port", 99999)
    assert "an endpoint is one process" in said_by(capsys, "deploy", *best, "--trainer.devices", 2)
    assert "record: none.jsonl: No such file" in said_by(capsys, "replay", *best, "--record", "none.jsonl")
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    monkeypatch.delitem(sys.modules, "glt_lightning.lightning.endpoint.app", raising=False)
    said = said_by(capsys, "deploy", *best, "--port", 0)
    assert "is not installed. Run: pip install 'glt-lightning[deploy]'" in said
