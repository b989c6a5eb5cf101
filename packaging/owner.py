#!/usr/bin/env python3
"""Writes what owner.toml says into the files that name it, between a line with `owner: KEY` and one with `/owner`.

With --check it changes nothing, and exits with 1 if a file is not as it would write it.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Owner = Mapping[str, str]
FILES = ("README.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CITATION.cff", "pyproject.toml", "mkdocs.yml")
_BLOCK = re.compile(r"^(?P<head>.*owner: (?P<key>\w+).*\n)(?P<body>(?:.*\n)*?)(?P<tail>.*/owner.*)$", re.M)


def badges(owner: Owner) -> list[str]:
    """The row of badges: tests of the repository, release at the registry, documentation."""
    repository, registry, site = owner["repository"], owner["registry"], owner["site"]
    found = []
    if repository:
        run = f"{repository}/actions/workflows/tests.yml"
        found.append(f"[![tests]({run}/badge.svg)]({run})")
    if registry:
        found.append(f"[![PyPI](https://img.shields.io/pypi/v/{registry})](https://pypi.org/project/{registry}/)")
    if site:
        found.append(f"[Documentation]({site})")
    return [" ".join(found)] if found else []


def security(owner: Owner) -> list[str]:
    """How to report a hole."""
    if owner["contact"]:
        return [f"Report it in private, to <{owner['contact']}>. {_WITH}"]
    page = "the Security page of the repository where you found this file"
    if owner["repository"]:
        page = f"the [Security page]({owner['repository']}/security)"
    return [f"Report it in private, by *Report a vulnerability* on {page}. {_WITH}"]


def conduct(owner: Owner) -> list[str]:
    """Whom to tell about a breach of the code of conduct."""
    return [f"Tell {'<' + owner['contact'] + '>' if owner['contact'] else 'a maintainer, in private'}. {_THEN}"]


def citation(owner: Owner) -> list[str]:
    """Addresses of a citation."""
    keys = {"repository-code": owner["repository"], "url": owner["site"]}
    return [f"{key}: {value}" for key, value in keys.items() if value]


def urls(owner: Owner) -> list[str]:
    """The links that the registry shows."""
    repository = owner["repository"]
    found = {"Documentation": owner["site"], "Repository": repository}
    if repository:
        found |= {"Issues": f"{repository}/issues", "Changelog": f"{repository}/blob/main/CHANGELOG.md"}
    lines = [f'{name} = "{value}"' for name, value in found.items() if value]
    return ["[project.urls]", *lines] if lines else []


def mkdocs(owner: Owner) -> list[str]:
    """Addresses of the site and of the repository that it shows."""
    keys = {"site_url": owner["site"], "repo_url": owner["repository"]}
    return [f"{key}: {value}" for key, value in keys.items() if value]


_WITH = "Please give the version (`glt-lightning --version`), what\nan attacker needs and gets, and steps or a script."
_THEN = "Who breaks these rules is first asked to stop, then excluded for a time, then for\ngood. Reports are kept confidential."
_KEYS: Mapping[str, Callable[[Owner], list[str]]] = {
    each.__name__: each for each in (badges, security, conduct, citation, urls, mkdocs)
}


def filled(text: str, owner: Owner) -> str:
    """Fills in all blocks of a text."""

    def fill(found: re.Match[str]) -> str:
        return found["head"] + "".join(f"{line}\n" for line in _KEYS[found["key"]](owner)) + found["tail"]

    return _BLOCK.sub(fill, text)


def main() -> None:
    """Writes or checks all files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing, and exit with 1 if something would change"
    )
    check = parser.parse_args().check
    owner = tomllib.loads((ROOT / "owner.toml").read_text())
    changed = [name for name in FILES if filled((ROOT / name).read_text(), owner) != (ROOT / name).read_text()]
    if check:
        sys.exit(f"not as owner.toml has it: {', '.join(changed)}. Run packaging/owner.py." if changed else 0)
    for name in changed:
        (ROOT / name).write_text(filled((ROOT / name).read_text(), owner))
        print(f"{name}: written")


if __name__ == "__main__":
    main()
