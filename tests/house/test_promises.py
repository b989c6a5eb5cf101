"""What SECURITY.md, docs/stability.md and the files about the owner say is so."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import glt_lightning
from tests.house.test_public_ci import script

ROOT = Path(__file__).parents[2]
NAMES = Path(__file__).with_name("public_names.txt")
OWNER = {"repository": "https://a.b/c", "site": "https://d.e", "registry": "some-name", "contact": "x@y.z"}


def public_names() -> list[str]:
    """Where users import them from: the package, and the packages right below it."""
    found = []
    for face in sorted((ROOT / "src/glt_lightning").glob("**/__init__.py")):
        module = ".".join(("glt_lightning", *face.parent.relative_to(ROOT / "src/glt_lightning").parts))
        if module.count(".") < 2 or module.startswith("glt_lightning.compat."):
            found += [f"{module}.{name}" for name in getattr(importlib.import_module(module), "__all__", [])]
    return sorted(found)


def test_public_names_stay() -> None:
    """A name that goes has two releases with a warning (docs/stability.md); a new one gets a line in the list."""
    listed = NAMES.read_text().splitlines()
    now = public_names()
    assert [name for name in listed if name not in now] == [], "public names are missing"
    assert [name for name in now if name not in listed] == [], f"add these to {NAMES.name}"
    assert listed == sorted(set(listed))


def test_promises_name_tests_that_are_there() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", (ROOT / "SECURITY.md").read_text())
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_a_citation_is_of_this_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == glt_lightning.__version__


def test_nothing_is_said_for_the_owner() -> None:
    owner = script("owner")
    now = tomllib.loads((ROOT / "owner.toml").read_text())
    assert set(now) == set(OWNER)
    for name in owner.FILES:
        text = (ROOT / name).read_text()
        assert owner.filled(text, now) == text, f"{name} is not as owner.toml has it; run packaging/owner.py"
        empty = owner.filled(text, dict.fromkeys(OWNER, ""))
        assert owner.filled(owner.filled(text, OWNER), dict.fromkeys(OWNER, "")) == empty
    texts = {name: owner.filled((ROOT / name).read_text(), OWNER) for name in owner.FILES}
    assert "(https://a.b/c/actions/workflows/tests.yml)" in texts["README.md"]
    assert "https://pypi.org/project/some-name/" in texts["README.md"]
    assert "to <x@y.z>." in texts["SECURITY.md"]
    assert "<x@y.z>" in texts["CODE_OF_CONDUCT.md"]
    assert yaml.safe_load(texts["CITATION.cff"])["repository-code"] == "https://a.b/c"
    urls = tomllib.loads(texts["pyproject.toml"])["project"]
    assert urls["urls"]["Changelog"] == "https://a.b/c/blob/main/CHANGELOG.md"
    assert urls["scripts"]  # the table below it
    assert "site_url: https://d.e\n" in texts["mkdocs.yml"]


@pytest.mark.parametrize("key", ["repository", "site", "registry", "contact"])
def test_one_value_alone_is_enough(key: str) -> None:
    owner = script("owner")
    only = {name: value if name == key else "" for name, value in OWNER.items()}
    assert any(OWNER[key] in owner.filled((ROOT / name).read_text(), only) for name in owner.FILES)


def test_pages_name_the_versions_that_are_needed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python = project["requires-python"].removeprefix(">=")
    bounds = dict(each.split(">=") for each in project["dependencies"] if ">=" in each)
    (common,) = {bounds[name] for name in ("torch", "lightning")}
    needed = rf"PyTorch and Lightning {re.escape(common)}, PyG {re.escape(bounds['torch_geometric'])}"
    for page in ("README.md", "packaging/site/index.md", "docs/stability.md"):
        text = " ".join((ROOT / page).read_text().split())
        assert f"Python {python}" in text
        assert re.search(needed, text), page
