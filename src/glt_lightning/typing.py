"""GraphLearn-for-PyTorch's `typing`, under the name from which its scripts import it."""

from glt_lightning.glt.typing import *  # noqa: F403
