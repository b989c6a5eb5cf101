"""Every YAML in the tree is a run that the command line understands."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from glt_lightning.lightning.cli import main

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
    assert names >= {"demo.yaml", "products.yaml", "hetero.yaml"} | reference


def test_products_has_every_key_of_the_data_section() -> None:
    """It is the config that documents the contract; `docs/configuration.md` explains each key."""
    data = yaml.safe_load((ROOT / "configs/products.yaml").read_text())["data"]["init_args"]
    explained = (ROOT / "docs/configuration.md").read_text()
    for key, value in data.items():
        for name in [key, *(value if isinstance(value, dict) else ())]:
            assert f"`{name}`" in explained, name
