"""A CUDA device for the tests here, or the reason why there is none."""

import pytest
import torch

from glt_lightning.kernels import Kernels


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    """The CUDA kernels on device 0. Where torch has a device, kernels that do not load are a failure, not a skip."""
    if not torch.cuda.is_available():
        pytest.skip(f"needs a CUDA device; torch {torch.__version__} sees none")
    return Kernels.open("cuda:0")
