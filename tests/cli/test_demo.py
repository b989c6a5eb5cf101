"""``glt-lightning demo``: a run in any folder, its report, and commands that work there."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from glt_lightning.base import OptionError, WriteError
from glt_lightning.cli import demo
from tests.helpers import started
from tests.helpers.run import run_cli

ROOT = Path(__file__).parents[2]
PACKAGED = files("glt_lightning") / "cli" / "demo.yaml"
SCRIPT = Path(sys.executable).with_name("glt-lightning")


def test_the_configuration_is_that_of_the_checkout() -> None:
    assert (ROOT / "configs/demo.yaml").read_text() == PACKAGED.read_text()


def test_the_end_names_the_newest_report_and_what_to_do_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "_RUNS", ())
    demo.run_demo([], "glt-lightning demo")
    assert Path("glt-demo/demo.yaml").read_text() == PACKAGED.read_text()
    assert "report of the run: none\n" in capsys.readouterr().out
    for number, age in ((9, 0), (10, 60)):
        report = Path(f"glt-demo/lightning_logs/version_{number}/report.html")
        report.parent.mkdir(parents=True)
        report.touch()
        os.utime(report, (1e9 + age, 1e9 + age))
    Path("glt-demo/demo.yaml").write_text("{}")
    demo.run_demo(["glt-demo"], "glt-lightning demo")
    shown = capsys.readouterr().out
    assert f"report of the run: {report.resolve()}\n" in shown
    assert re.findall(r"^  (?:cd|glt-lightning) (\S+)", shown, re.M) == ["glt-demo", "predict", "partition", "fit"]
    assert Path("glt-demo/demo.yaml").read_text() == "{}"  # one's own stays


@pytest.mark.parametrize(("encoding", "bars"), [("utf-8", "▁█▅"), ("ascii", "_#=")])
def test_a_picture_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, bars: str) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(demo, "_RUNS", ())
    folder = tmp_path / "lightning_logs/version_0"
    folder.mkdir(parents=True)
    (folder / "report.html").touch()
    lines = ["epoch,train_loss,val_acc", "0,4.5,", "0,,0.25", "1,2.5,", "1,,0.75", "2,2.5,", "2,,0.5"]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    demo.run_demo([str(tmp_path)], "glt-lightning demo")
    out.seek(0)
    shown = out.read()
    assert f"  val_acc     {bars}  0.25 to 0.5 in 3 epochs\n" in shown
    assert "val_loss" not in shown


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=r"file is a file\. Give another name: glt-lightning demo FOLDER"):
        demo.run_demo([str(tmp_path / "file")], "glt-lightning demo")
    with pytest.raises(WriteError, match=r"Not a directory\. Choose another folder"):
        demo.run_demo([str(tmp_path / "file/below")], "glt-lightning demo")


def test_a_run_that_fails_ends_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_RUNS", (("serve", "--health", "127.0.0.1:1"), ("--version",)))
    with pytest.raises(SystemExit) as end:
        demo.run_demo([str(tmp_path)], "glt-lightning demo")
    assert end.value.code == 1
    shown = capfd.readouterr()
    assert "demo: glt-lightning serve --config demo.yaml --health 127.0.0.1:1" in shown.out
    assert "--version" not in shown.out  # nothing comes after it
    assert "nothing listens at this address" in shown.err


@pytest.mark.slow
def test_a_first_run_and_what_it_says_to_do_next(tmp_path: Path) -> None:
    config = yaml.safe_load(PACKAGED.read_text())
    config["trainer"] |= {"devices": 1, "max_epochs": 2, "strategy": "auto"}
    config["data"]["init_args"]["sampling"] = {"num_workers": 0}
    (tmp_path / "glt-demo").mkdir()
    (tmp_path / "glt-demo/demo.yaml").write_text(yaml.safe_dump(config))
    shown = run_cli("demo", cwd=tmp_path).stdout
    assert re.search(r"^  val_acc     [▁█]{2}  0\.\d+ to 0\.\d+ in 2 epochs$", shown, re.M)
    report = re.search(r"report of the run: (.+)", shown)
    assert report is not None
    assert "<svg" in Path(report[1]).read_text()
    commands = shown.partition("Next:\n")[2]
    path = os.pathsep.join([str(SCRIPT.parent), os.environ["PATH"]])
    ended = subprocess.run(
        ["bash", "-ec", commands],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "edge cut" in ended.stdout
    assert "num_neighbors" in ended.stdout
    assert list(tmp_path.glob("glt-demo/lightning_logs/*/predictions/*.parquet"))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_run_in_order(tmp_path: Path, number: signal.Signals, status: int) -> None:
    """A terminal sends Ctrl-C to all processes of the command, an operator SIGTERM to the first."""
    (tmp_path / "glt-demo").mkdir()
    long = PACKAGED.read_text().replace("max_epochs: 30", "max_epochs: 1000")  # none ends before its signal
    (tmp_path / "glt-demo" / "demo.yaml").write_text(long)
    with started([SCRIPT, "demo"], cwd=tmp_path) as run:
        until = time.monotonic() + 240
        while "Epoch 1:" not in run.output:
            assert time.monotonic() < until, run.output
            time.sleep(0.2)
        if number == signal.SIGINT:
            os.killpg(run.popen.pid, number)
        else:
            run.popen.send_signal(number)
        assert run.wait(60) == status, run.output
        assert not run.family()
        assert "--ckpt_path last continues it" in run.output
