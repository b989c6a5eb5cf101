"""Every YAML in the tree is a run that the command line understands."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
from pathlib import Path

import pytest
import yaml

from glt_lightning import base as options
from glt_lightning.cli import main

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
    kind = "LinkPredictor" if printed["data"]["init_args"]["task"] == "link" else "GraphSAGE"
    assert printed["model"]["class_path"] == f"glt_lightning.{kind}"
    assert list(tmp_path.iterdir()) == []


def test_the_expected_configs_are_there() -> None:
    names = {path.relative_to(ROOT / "configs").as_posix() for path in CONFIGS}
    reference = {
        f"reference/{n}.yaml"
        for n in ("cora", "amazon_computers", "facebook_pages", "wordnet", "dblp_hetero", "dblp_link", "wordnet_link")
    } | {"reference/cora_seal.yaml", "reference/wordnet_shadow.yaml", "reference/cora_pinsage.yaml"}
    own = {"demo.yaml", "products.yaml", "hetero.yaml", "server-client.yaml", "link.yaml", "ogbl-collab.yaml"}
    assert names >= own | reference


def test_the_page_of_options_names_every_option() -> None:
    """`make docs` writes it from the classes; it is not in git."""
    maker = importlib.util.spec_from_file_location("options_page", ROOT / "docs/options_page.py")
    assert maker is not None
    assert maker.loader is not None
    module = importlib.util.module_from_spec(maker)
    maker.loader.exec_module(module)
    page = module.page()
    for group, kind in module.GROUPS.items():
        section = page.split(f"\n## {group}\n")[1].split("\n## ")[0]
        missing = [
            name
            for name in inspect.signature(kind).parameters
            if f"| `{name}` |" not in section and f"| `{group}.{name}` |" not in page  # an old name
        ]
        assert not missing, f"{group}: {missing} are not on the page"
    kinds = {each for each in vars(options).values() if isinstance(each, type) and dataclasses.is_dataclass(each)}
    inner = {
        options.ServingOptions,
        options.DrawOptions,
        options.GpuBudgets,
        options.PickerSpec,
    }  # a base class, and values made from groups
    assert kinds - inner <= set(module.GROUPS.values()), "an options class is not on the page"
