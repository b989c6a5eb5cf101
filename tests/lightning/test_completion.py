"""The completion of the shell, as bash runs it."""

from __future__ import annotations

import subprocess

import pytest

from glt_lightning.cli import main
from glt_lightning.cli.completion import completion_script, options_of

UNUSED = ("_find_unused_parameters_false", "_find_unused_parameters_true")
PAGE = """\
usage: x [-h] [--config CONFIG]

options:
  -h, --help            Show this help message and exit.
  -c CONFIG, --config CONFIG
  --trainer.max_epochs MAX_EPOCHS
                        See --trainer.min_epochs.
"""


def completed(script: str, *words: str) -> list[str]:
    """What bash offers for the last word."""
    asked = " ".join(f"'{word}'" for word in ("glt-lightning", *words))
    code = (
        f'{script}\nCOMP_WORDS=({asked}); COMP_CWORD={len(words)}; _glt_lightning; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.split()


@pytest.fixture(scope="module")
def script() -> str:
    return completion_script({"fit": ["--config", "--trainer.max_epochs"], "report": ["--html"], "completion": []})


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["re"], ["report"]),
        (["--v"], ["--version"]),
        (["fit", "--trainer.max"], ["--trainer.max_epochs"]),
        (["report", "--"], ["--html"]),
        (["fit", "--model", "Graph"], ["GraphSAGE"]),
        (["fit", "--data.help", ""], ["GLTDataModule"]),
        (["fit", "--trainer.strategy", "glt_w"], ["glt_worker", *(f"glt_worker{each}" for each in UNUSED)]),
    ],
)
def test_offers(script: str, words: list[str], offered: list[str]) -> None:
    assert sorted(completed(script, *words)) == offered


def test_offers_files(script: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert completed(script, "fit", "--config", "ru") == ["run.yaml"]


def test_options_are_those_that_a_page_explains() -> None:
    assert options_of(PAGE) == ["--help", "--config", "--trainer.max_epochs"]


@pytest.mark.slow
def test_script_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    script = capsys.readouterr().out
    for words, option in [
        (["fit", "--trainer.max_ep"], "--trainer.max_epochs"),
        (["test", "--data.sampling.num_w"], "--data.sampling.num_workers"),
        (["predict", "--model.hid"], "--model.hidden_channels"),
        (["serve", "--server.ra"], "--server.rank"),
        (["certs", "--ho"], "--hosts"),
    ]:
        assert completed(script, *words) == [option]
