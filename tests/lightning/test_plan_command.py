"""``python -m lightning plan``: from a configuration to numbers, and a run that is compared with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from glt_lightning.cli import main
from glt_lightning.lightning.planner.gpus import CONTEXT_BYTES, GPUS
from tests.lightning.report.test_run_html import rows

MODEL = {"class_path": "glt_lightning.GraphSAGE", "init_args": {"hidden_channels": 16, "num_layers": 2}}


@pytest.fixture
def config(graph_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    data = {"dataset": str(graph_npz), "root": "root", "num_neighbors": [5, 5], "batch_size": 20}
    data |= {"partition": {"num_parts": 2}}
    run = {
        "seed_everything": 3,
        "trainer": {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "default_root_dir": "runs"},
        "model": MODEL,
        "data": {"class_path": "glt_lightning.GLTDataModule", "init_args": data},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(run))
    return path


def said(capsys: pytest.CaptureFixture[str], *args: Any) -> tuple[str, str]:
    capsys.readouterr()
    main(list(map(str, args)))
    found = capsys.readouterr()
    return found.out, found.err


@pytest.fixture
def folder(config: Path, tmp_path: Path) -> Path:
    """That of the partition, which is made."""
    main(["partition", "--config", str(config), "--batches", "1"])
    (made,) = (path for path in (tmp_path / "root" / "partitions").iterdir() if path.is_dir())
    return made


def test_a_plan_and_the_run_after_it(
    config: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    text, errors = said(capsys, "plan", "--config", config)
    assert "measuring some batches" in errors
    for line in ("An epoch", "steps: model, gradients", "Memory", "needed by a host", "What would change", "labor"):
        assert line in text
    assert "1 host with 1 rank each" in text
    plan, errors = said(capsys, "plan", "--config", config, "--batches", 0, "--json")
    assert "measuring" not in errors  # it is kept
    assert before == {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    found = json.loads(plan)
    assert (found["epoch"]["mid"]["batches"], found["epoch"]["mid"]["seeds"]) == (5, 100)
    assert found["memory"]["needed"] > 0
    assert not list((tmp_path / "runs").glob("*"))
    assert {each["name"] for each in found["changes"]} >= {"one more host", "data.num_neighbors: [3, 3]"}

    main(["fit", "--config", str(config)])
    (page,) = (tmp_path / "runs").rglob("report.html")
    table = rows(page.read_text())
    size = found["epoch"]["mid"]["counters"]["local_bytes"]
    assert table["bytes of local rows"][:3] == [f"{size / 1000:.3g} kB", f"{size / 1000:.3g} kB", "+0%"]
    assert table["batches"][:3] == ["5", "5", "+0%"]


@pytest.mark.slow
def test_hosts(config: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = ["--trainer.strategy", "glt_worker", "--hosts", 2, "--ranks", 2, "--machine", "r7i.8xlarge"]
    text, _ = said(capsys, "plan", "--config", config, *hosts)
    for line in (
        "bytes of remote rows",
        "messages of a host",
        "of its network",
        "data.cache.ratio: 0.2",
        "and 3 parts",
        "parts          each host has 1 of 2",
    ):
        assert line in text
    assert "not measured   the sum of gradients over ranks" in text
    assert "r7i.8xlarge: a core is taken to be one of this machine" in text
    assert "a host has                                       275 GB" in text
    text, _ = said(
        capsys, "plan", "--config", config, *hosts, "--choose", "--data.sampling.concurrency", 2, "--cores", 8
    )
    (tmp_path / "chosen.yaml").write_text(text)
    chosen = yaml.safe_load(text)["data"]["init_args"]
    assert set(chosen["sampling"]) == {"num_workers", "channel_size"}
    assert chosen["cache"]["ratio"] in (None, 0.01, 0.05, 0.1, 0.2, 0.5)
    assert "; with streaming: " in text  # partitions that were made to be counted
    assert chosen["partition"]["algorithm"] in ("random", "streaming", "metis")
    assert '# yours to choose: data.partition.storage: {"x": "bfloat16"}: rounds values; ' in text
    assert [path for path in (tmp_path / "root" / "partitions").iterdir() if path.is_dir()] == [folder]
    assert text.count(" an epoch; with ") == 4
    both = ["--config", config, "--config", tmp_path / "chosen.yaml", "--choose", "--data.sampling.concurrency", 2]
    assert said(capsys, "plan", *both)[0].startswith(
        "# nothing is left open\n# yours to choose: data.partition.storage"
    )
    alone = said(capsys, "plan", "--config", config, "--choose", "--data.sampling.num_workers", 1)[0]
    assert yaml.safe_load(alone)["data"]["init_args"]["sampling"]["concurrency"] == 4  # any is as fast

    text, _ = said(capsys, "plan", "--config", config, "--hosts", 2)  # without a strategy that deals parts
    assert "parts          each host has 2 of 2" in text
    assert "remote" not in text
    assert "3 parts" not in text
    served = ["--trainer.strategy", "glt_server_client", "--ranks", 2, "--cores", 6]
    found = json.loads(said(capsys, "plan", "--config", config, *served, "--data.sampling.num_workers", 2, "--json")[0])
    assert "one sampler process less" not in {each["name"] for each in found["changes"]}
    text, _ = said(capsys, "plan", "--config", config, *served, "--choose")
    assert "; with 4: " in text  # samplers of a server are those of all its ranks, and it has some
    assert yaml.safe_load(text)["data"]["init_args"]["sampling"]["num_workers"] == 2


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_gpus(config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = ["--machine", "p5.48xlarge", "--gpus", 2]
    text, _ = said(capsys, "plan", "--config", config, *gpus)
    for line in (
        "1 host with 2 ranks each",
        "An epoch; its seconds are computed, not measured",
        "H100 has",
        "attributes",
    ):
        assert line in text
    found = json.loads(said(capsys, "plan", "--config", config, *gpus, "--data.sampling.num_workers", 1, "--json")[0])
    assert found["gpu"]["how"] == "computed, not measured"
    assert found["epoch"]["low"]["copy_s"] < found["epoch"]["high"]["copy_s"]
    assert found["gpu"]["attributes"] == 0  # samplers have them
    assert {each["how"] for each in found["changes"]} == {"computed"}
    assert min(found["probe"]["train"]["mid"][name] for name in ("flops", "moved_bytes", "launches")) > 0
    small = replace(GPUS["H100"], memory=CONTEXT_BYTES + 1e4)
    monkeypatch.setitem(GPUS, "H100", small)
    refused(
        config, capsys, [*map(str, gpus), "--data.sampling.topology", "cpu"], "memory: a GPU of this job needs 0.60 GB"
    )
    refused(config, capsys, [*map(str, gpus), "--data.sampling.topology", "device"], "of the GPU's memory, and ")


def test_what_changes_no_value_is_chosen_for_a_slow_network(
    config: Path, graph_npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = dict(np.load(graph_npz))
    np.savez(tmp_path / "exact.npz", **arrays | {"x": np.round(arrays["x"])})
    given = ["--config", config, "--data.dataset", tmp_path / "exact.npz", "--data.partition.algorithm", "random"]
    given += ["--data.sampling.num_workers", 0, "--data.cache.ratio", "null"]
    main(["partition", *map(str, given[:6]), "--batches", "1"])
    hosts = ["--trainer.strategy", "glt_worker", "--hosts", 2, "--network", "1Mbit", "--choose"]
    text, _ = said(capsys, "plan", *given, *hosts)
    assert yaml.safe_load(text)["data"]["init_args"] == {"partition": {"storage": {"x": "float16"}}}
    assert "changes no value; " in text
    (folder,) = (path for path in (tmp_path / "root" / "partitions").iterdir() if path.is_dir())
    text, _ = said(capsys, "plan", *given, *hosts, "--data.partition.dir", folder)
    assert text == "# nothing is left open\n"  # a partition that is named is not made anew


def test_without_a_partition_it_plans_that(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, errors = said(capsys, "plan", "--config", config)
    for line in (
        "2 parts, random",
        "writing edges",
        "memory: at most about",
        "disk: at least",
        "No partition is there yet.",
    ):
        assert line in text
    assert "measuring" not in errors
    found = json.loads(said(capsys, "plan", "--config", config, "--json")[0])["partition"]
    assert found["steps"][-1]["name"] == "hashing files"
    assert found["cpu_s"] > 0
    assert found["wall_s"] > 0
    assert not list((tmp_path / "root").rglob("manifest.json"))


def test_refused_in_one_line(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(
        config, capsys, ["--choose"], "no partition is there yet, and options are chosen by its batches. Run python -m"
    )
    refused(config, capsys, ["--network", "fast"], "--network: expected the speed of a network such as 25Gbit")
    main(["partition", "--config", str(config), "--batches", "1"])
    server = ["--trainer.strategy", "glt_server_client", "--cluster.servers", "[h:1]"]
    for args, line in (
        (["--hosts", "0"], "--hosts: expected at least 1, got 0."),
        (["--batches", "-1"], "--batches: expected at least 0, got -1."),
        (["--hosts", "2", "--network", "fast"], "--network: expected the speed of a network such as 25Gbit"),
        (["--latency_ms", "-1"], "--latency_ms: expected at least 0, got -1."),
        (["--memory", "20MB"], "memory: a host of this job needs "),
        (["--machine", "r7i.8xlarg"], "got 'r7i.8xlarg'. Did you mean r7i.8xlarge?"),
        (["--netwrok", "1Gbit"], "unrecognized arguments: --netwrok 1Gbit. Did you mean --network?"),
        (server, "cluster.servers: plan reads the partition"),
    ):
        refused(config, capsys, args, line)


def refused(config: Path, capsys: pytest.CaptureFixture[str], args: list[str], line: str) -> None:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["plan", "--config", str(config), *args])
    assert stop.value.code == 2
    (error,) = (each for each in capsys.readouterr().err.splitlines() if each.startswith("error:"))
    assert line in error
