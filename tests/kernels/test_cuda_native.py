"""What a user is told whose machine cannot run the CUDA kernels."""

from types import SimpleNamespace

import pytest
import torch

from glt_lightning.base import NativeError
from glt_lightning.kernels import Kernels
from glt_lightning.kernels.cuda import native as cuda_native, stream as cuda
from glt_lightning.kernels.cuda.native import cuda_library
from glt_lightning.kernels.native import CUDA, OK, library_path


def library_where(monkeypatch, tmp_path, *, code: int, driver: int, built: int = 13000) -> None:
    """A library that finds no device: the driver gives this error, and knows this CUDA."""

    def count(devices, detail):
        devices._obj.value, detail[0] = 0, code
        return CUDA if code else OK

    def versions(built_by, known, detail):
        built_by._obj.value, known._obj.value = built, driver
        return OK

    class Text:
        def __call__(self, code):
            return b"so it says"

    fake = SimpleNamespace(glt_cuda_device_count=count, glt_cuda_versions=versions, glt_cuda_error_text=Text())
    (tmp_path / cuda_native.NAME).touch()
    monkeypatch.setenv("GLT_KERNELS_DIR", str(tmp_path))
    monkeypatch.setattr(cuda_native, "load", lambda name, signatures: fake)


@pytest.mark.parametrize(
    ("code", "driver", "said"),
    [
        (35, 0, r"so it says \(CUDA error 35\); there is no NVIDIA driver\. Install one"),
        (
            35,
            12040,
            r"need CUDA 13\.0, the driver supports CUDA 12\.4\. Update the driver to 580 or newer, or install",
        ),
        (
            100,
            13000,
            r"error 100\); the kernels need CUDA 13\.0, the driver supports CUDA 13\.0\. `nvidia-smi` names",
        ),
        (0, 13010, r"error 0\).* the driver supports CUDA 13\.1\. .*CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_driver_that_does_not_serve_is_named(monkeypatch, tmp_path, code, driver, said):
    library_where(monkeypatch, tmp_path, code=code, driver=driver)
    with pytest.raises(NativeError, match=f"no CUDA device can be used here: .*{said}.* Or sample on the CPU"):
        cuda_library.__wrapped__()


def test_a_cuda_to_come_has_no_driver_number(monkeypatch, tmp_path):
    library_where(monkeypatch, tmp_path, code=35, driver=13000, built=14020)
    with pytest.raises(
        NativeError, match=r"need CUDA 14\.2, .* CUDA 13\.0\. Update the driver, or install .* nvcc of CUDA 13\."
    ):
        cuda_library.__wrapped__()


def test_a_device_without_kernels_is_named(kernels):
    kernels.require_built_for_device()
    kernels.device_has(75, built=False)
    said = r"cpu has compute capability 7\.5, .* cannot run there: .* \(CUDA error 209\)\. They need 8\.0 or newer"
    with pytest.raises(NativeError, match=said):
        kernels.require_built_for_device()


def test_a_library_that_was_not_built_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("GLT_KERNELS_DIR", str(tmp_path))
    with pytest.raises(NativeError, match=r"were not built: .*libglt_kernels_cuda\.so not found"):
        cuda_library.__wrapped__()


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_a_missing_driver_is_named():
    if not library_path("libglt_kernels_cuda.so").exists():
        pytest.skip("the CUDA kernels were not built here")
    with pytest.raises(NativeError, match=r"no CUDA device can be used here: .* \(CUDA error \d+\)"):
        cuda_library.__wrapped__()


def test_the_cpu_is_no_cuda_device():
    with pytest.raises(NativeError, match="expected a CUDA device, got 'cpu'"):
        Kernels.open("cpu")


def test_a_device_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(cuda, "cuda_library", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(NativeError, match=r"there is no 'cuda:2'; CUDA devices here: 2, from cuda:0 on"):
        Kernels.open("cuda:2")
