"""A store of S3, which moto stands in for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def s3_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, str]]:
    """Yields the file system, with s3://bucket, and host:port; processes that are started find it, too."""
    server = pytest.importorskip("moto.server", reason="moto is not installed: pip install glt-lightning[test]")
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed: pip install glt-lightning[test]")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    try:
        address = "{}:{}".format(*running.get_host_and_port())
        given = {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "secret-of-a-test", "DEFAULT_REGION": "us-east-1"}
        for name, value in (given | {"ENDPOINT_URL": f"http://{address}"}).items():
            monkeypatch.setenv(f"AWS_{name}", value)
        s3fs.S3FileSystem.clear_instance_cache()  # of the address of another test
        store = s3fs.S3FileSystem(skip_instance_cache=True)
        store.mkdir("bucket")
        yield store, address
        store.rm("bucket", recursive=True)
    finally:
        running.stop()
