"""Outputs in a bucket of S3, as moto's server has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glt_lightning import predict_layerwise, read_embeddings


@pytest.mark.slow
def test_a_bucket_has_the_rows_of_a_folder(
    make_data: Any, make_model: Any, make_trainer: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = pytest.importorskip(
        "moto.server", reason="moto, flask or s3fs is not installed; they are in the extra test"
    )
    s3fs = pytest.importorskip("s3fs", reason="moto, flask or s3fs is not installed; they are in the extra test")
    running = server.ThreadedMotoServer("127.0.0.1", 0)
    running.start()
    try:
        host, port = running.get_host_and_port()
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
            monkeypatch.setenv(f"AWS_{name}", "test")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()  # of the address of another test
        store = s3fs.S3FileSystem()
        store.mkdir("bucket")
        model, data = make_model(), make_data()
        for _ in range(2):
            predict_layerwise(make_trainer(), model, data, "s3://bucket/emb")
        predict_layerwise(make_trainer(), model, data, tmp_path / "emb")
        found, expected = read_embeddings("s3://bucket/emb"), read_embeddings(tmp_path / "emb")
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
        store.invalidate_cache()
        assert len(store.ls("bucket/emb")) == 2
    finally:
        running.stop()
