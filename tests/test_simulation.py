"""The simulation of many hosts against the rules of a plan, which it repeats where nothing differs; and the tables of scale."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from glt_lightning.lightning.planner.rules import BatchCost, Connection, Layout, RemoteCost, expect_epoch

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
COST = BatchCost(
    seeds=10,
    sample_s=1,
    gather_s=2,
    collate_s=0.25,
    step_s=3.75,
    step_cpu_s=3.75,
    handed_s=0.25,
    ranked_s=0.25,
    ranked_cpu_s=0.25,
)
REMOTE = RemoteCost(rows=50, row_bytes=200, requests=6, nbytes=1000, rounds=3)
LINK = Connection(round_trip_s=0.1, call_cpu_s=0.01, byte_cpu_s=0.001)
HOSTS: dict[str, Any] = {"hosts": 2, "owners": 2, "cores": 99, "bytes_per_s": 100, "latency_s": 0.2}


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("simulate")


@pytest.mark.parametrize(
    ("layout", "remote", "near"),
    [
        (Layout(cores=2), None, 0),  # one process: exactly the sum
        (Layout(workers=1, cores=8), None, 0.02),  # the trainer
        (Layout(workers=1, cores=1), None, 0.02),  # the cores
        (Layout(ranks=2, workers=1, cores=2), None, 0.02),
        (Layout(**HOSTS), REMOTE, 0),  # waits for owners, one after the other
        (Layout(**HOSTS, workers=1), REMOTE, 0.02),  # the network
        (Layout(**HOSTS | {"hosts": 4, "bytes_per_s": 1e6}, workers=1), REMOTE, 0.02),
    ],
)
def test_it_repeats_the_rules(simulate: Any, layout: Layout, remote: RemoteCost | None, near: float) -> None:
    expected = expect_epoch(COST, 60, layout, remote=remote or RemoteCost(), link=LINK)
    found = simulate.simulate(COST, 60, layout, remote, LINK)
    assert found == pytest.approx(expected.elapsed_s / expected.ranks, rel=near or 1e-9)


def test_all_wait_for_the_slowest(simulate: Any) -> None:
    layout = Layout(**HOSTS | {"hosts": 4, "bytes_per_s": 1e6, "cores": 4}, workers=1)

    def run(**scenario: Any) -> float:
        return simulate.simulate(COST, 20, layout, REMOTE, LINK, simulate.Scenario(**scenario))

    alike = run()
    assert run(slow=0.5) == pytest.approx(2 * alike, rel=0.05)
    differ = run(spread=0.2)
    assert differ == run(spread=0.2)  # by seed
    assert 1.02 * alike < differ < 1.6 * alike
    assert run(spread=0.2, seed=1) != differ
    slow_link = Layout(**HOSTS, workers=1)
    scenario = simulate.Scenario(slow_link=0.5)
    assert simulate.simulate(COST, 20, slow_link, REMOTE, LINK, scenario) > 1.8 * 20 * 10


def test_failures_cost_what_came_after_the_checkpoint(simulate: Any) -> None:
    assert simulate.with_failures(1000, 1, 1e12, 10, 60) == 1000
    found = simulate.with_failures(100_000, 64, 1000, 600, 60, times=2000)
    each = 1000 * 3600 / 64
    assert found == pytest.approx(100_000 * (1 + (300 + 60) / each), rel=0.01)


def test_scripts(
    simulate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = {"train": {"mid": asdict(COST)}, "hosts_link": asdict(LINK)}
    plan = {"probe": probe, "layout": asdict(Layout(**HOSTS, workers=1)), "counted": {"remote": asdict(REMOTE)}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    monkeypatch.setattr("sys.argv", ["simulate.py", str(tmp_path / "plan.json"), "--steps", "5"])
    simulate.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["scenario"] for line in lines][-1] == "a day with failures"
    assert lines[2]["seconds"] > lines[0]["seconds"]

    (tmp_path / "plan.json").write_text(json.dumps({**plan, "gpu": {"half": False}}))
    with pytest.raises(SystemExit):
        simulate.main()
    assert "a plan on GPUs" in capsys.readouterr().err

    scale = importlib.import_module("scale")
    monkeypatch.setattr("sys.argv", ["scale.py", "--hosts", "1", "4", "64", "--memory", "200GB"])
    scale.main()
    text = capsys.readouterr().out
    papers = text.split("\n\n")[0].splitlines()
    assert len(papers) == 5
    assert "| 1 | - | memory |" in text.split("\n\n")[1]  # MAG240M does not fit on one host
    rows = [scale.row(scale.GRAPHS[0], hosts, scale_arguments(scale)) for hosts in (4, 8)]
    assert rows[1].seconds < rows[0].seconds
    assert rows[0].price == pytest.approx(4 * rows[0].seconds / 3600)


def scale_arguments(scale: Any) -> Any:
    values = {"cores": 32, "memory": "256GB", "network": "25Gbit", "price": 1.0, "cut": 1.0, "efficiency": 0.5}
    return scale.argparse.Namespace(**values)
