"""GraphLearn-for-PyTorch's `utils`, under the name from which its scripts import them."""

from glt_lightning.glt.utils import *  # noqa: F403
