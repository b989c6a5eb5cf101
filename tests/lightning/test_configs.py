"""Every YAML in the tree is a run that the command line understands."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path

import pytest
import yaml

from glt_lightning import ClusterOptions, GLTDataModule, GraphSAGE, NodePredictor, PartitionOptions, SamplingOptions
from glt_lightning.lightning.cli.command_line import main
from glt_lightning.options import CacheOptions, DeadlineOptions, RetryOptions, SecurityOptions

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: str(path.relative_to(ROOT / "configs")))
def test_config_is_understood_and_nothing_is_done(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["fit", "--config", str(config), "--print_config"])
    assert end.value.code == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["data"]["class_path"] == "glt_lightning.GLTDataModule"
    assert printed["model"]["class_path"] == "glt_lightning.GraphSAGE"
    assert list(tmp_path.iterdir()) == []


def test_the_expected_configs_are_there() -> None:
    names = {path.relative_to(ROOT / "configs").as_posix() for path in CONFIGS}
    reference = {
        f"reference/{n}.yaml" for n in ("cora", "amazon_computers", "facebook_pages", "wordnet", "dblp_hetero")
    }
    assert names >= {"demo.yaml", "products.yaml", "hetero.yaml", "server-client.yaml"} | reference


GROUPS = [
    PartitionOptions,
    SamplingOptions,
    CacheOptions,
    ClusterOptions,
    DeadlineOptions,
    RetryOptions,
    SecurityOptions,
]
OPTIONS = [*GROUPS, GLTDataModule, GraphSAGE, NodePredictor]


@pytest.mark.parametrize("kind", OPTIONS, ids=lambda kind: kind.__name__)
def test_every_option_is_explained(kind: type) -> None:
    text = (ROOT / "docs/configuration.md").read_text()
    missing = [name for name in inspect.signature(kind).parameters if f"`{name}`" not in text]
    assert not [name for name in missing if name not in ("partition", "sampling", "cache")]


def test_documented_defaults_are_the_defaults() -> None:
    text = (ROOT / "docs/configuration.md").read_text()
    for kind in GROUPS:
        for name, default in vars(kind()).items():
            rows = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
            shown = {row.split("|")[2].strip() for row in rows}
            as_yaml = "below" if dataclasses.is_dataclass(default) else yaml.safe_dump(default, default_flow_style=True)
            written = as_yaml.splitlines()[0]
            assert written in shown, name
