"""Downloads an archive with deadlines and without prompts; the target folder appears complete or not at all."""

from __future__ import annotations

import shutil
import urllib.request
import zipfile
from pathlib import Path

from glt_lightning.base import DataError, Progress
from glt_lightning.graph import disk_full_speaks
from glt_lightning.partition.folder import exclusive, whole_folder

_STALL_S = 60.0  # longest time without a byte from the server before the download fails
_LOCK_S = (
    6 * 3600.0
)  # wait for another process that downloads: ogbn-papers100M has about 57 GB, which is 2.6 MB/s for six hours
_CHUNK = 1 << 20


def fetch_zip(url: str, inner: str, target: Path, hint: str) -> None:
    """Downloads ``url`` and puts its folder ``inner`` at ``target``, unless ``target`` is there already."""
    with exclusive(target, _LOCK_S):
        if target.exists():  # another process downloaded it during the wait
            return
        try:
            with whole_folder(target) as temporary:
                archive = temporary / "archive.zip"
                _fetch(url, archive)
                with zipfile.ZipFile(archive) as members, disk_full_speaks(temporary, _unpacked_bytes(members)):
                    members.extractall(temporary)
                archive.unlink()
                for entry in (temporary / inner).iterdir():
                    shutil.move(entry, temporary / entry.name)
                (temporary / inner).rmdir()
        except (OSError, zipfile.BadZipFile) as error:  # URLError and timeouts are OSErrors
            raise DataError(f"dataset: cannot download {url} ({error}). {hint}") from None


def _fetch(url: str, path: Path) -> None:
    with urllib.request.urlopen(url, timeout=_STALL_S) as reply, open(path, "wb") as out:
        size = int(reply.headers.get("Content-Length") or 0)
        with Progress(None).phase("downloading", size, "B") as done, disk_full_speaks(path.parent, size):
            while chunk := reply.read(_CHUNK):
                out.write(chunk)
                done(len(chunk))
        if size and path.stat().st_size != size:
            raise OSError(f"the connection was closed after {path.stat().st_size:,} of {size:,} bytes")


def _unpacked_bytes(members: zipfile.ZipFile) -> int:
    return sum(info.file_size for info in members.infolist())
