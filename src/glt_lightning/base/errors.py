"""The exceptions of the package.

Each message says what was given, what is accepted and what to do next, in one or two lines.
"""


class GLTError(Exception):
    """Base of every error this package raises on purpose. ``on_all_ranks``: whether every rank of the job raises it, so that one
    line in the log of each host is enough.

    Example:
        >>> issubclass(OptionError, GLTError)
        True
    """

    on_all_ranks = False


class OptionError(GLTError, ValueError):
    """An option has a value that cannot be used.

    Example:
        >>> SamplingOptions(num_workers=-1)
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: sampling.num_workers: ...
    """


class DataError(GLTError, ValueError):
    """Input data contradicts itself: ids out of range, lengths that disagree, NaN labels.

    Example:
        >>> open_source("missing.npz", "data")
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.DataError: ...
    """


class NoEmbeddingError(DataError):
    """A node came after training, and the rule for such (``embeddings: error``) gives it no embedding."""


class PartitionError(GLTError, RuntimeError):
    """A partition folder is missing, damaged, not one of ours, or was built with different options.

    Example:
        >>> LocalPartition.open("nowhere")
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.PartitionError: ...
    """


class WriteError(GLTError, OSError):
    """A file that a run leaves, a checkpoint or predictions, cannot be written: most often the disk is full."""


class SamplerError(GLTError, RuntimeError):
    """A sampler could not make a batch; carries the traceback of the process it ran in."""


class PeerError(GLTError, RuntimeError):
    """Another process of the job died, or did not answer within its deadline.

    Example:
        >>> issubclass(PeerError, GLTError), issubclass(PeerError, RuntimeError)
        (True, True)
    """


class PeerLostError(PeerError):
    """A peer cannot be reached, its connection broke, or a call passed its deadline. Trying again may help."""


class FullError(PeerLostError):
    """A peer has no room for this process now: too many streams, sessions or unread replies. Trying again may help."""


class RefusedError(PeerError):
    """A peer turned this process away: another version, graph, job or secret. Trying again does not help."""


class RemoteError(PeerError):
    """What a peer was asked for raised an error there. ``kind``: the name of that error; ``traceback``: where it arose."""

    def __init__(self, message: str, kind: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.kind, self.traceback = kind, traceback


class NativeError(GLTError, RuntimeError):
    """The native library is missing, does not load, or has another ABI version."""
