#!/usr/bin/env python3
"""Prints the notes of a release, which are its part of CHANGELOG.md: release_notes.py v0.2.0.

Exits with a message if the tag is not the package's version, or if the changelog has no such part.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def release_notes(tag: str, version_file: str, changelog: str) -> str:
    """Finds the notes of a tag. version_file: the text of version.py. Raises `ValueError`, whose text says what is wrong."""
    found = re.search(r'^__version__ = "(.+)"$', version_file, re.M)
    version = found[1] if found else None
    if tag != f"v{version}":
        raise ValueError(f"the tag is {tag}, and the package has version {version}; expected v{version}")
    parts = re.split(r"^## ", changelog, flags=re.M)[1:]
    notes = next((part for part in parts if part.split()[0].strip("[]") == version), None)
    if notes is None or not notes.partition("\n")[2].strip():
        raise ValueError(f"CHANGELOG.md has no notes below `## {version}`; give `## Unreleased` this name, and a date")
    return notes.partition("\n")[2].strip() + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        files = (ROOT / "src/glt_lightning/base/version.py", ROOT / "CHANGELOG.md")
        sys.stdout.write(release_notes(sys.argv[1], *(file.read_text() for file in files)))
    except ValueError as error:
        sys.exit(f"release_notes: {error}")
