"""Options of layer-wise inference, and of recommendations, which are made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from glt_lightning.base.checks import at_least, one_of, parse_bytes
from glt_lightning.base.errors import OptionError
from glt_lightning.base.tensors import TensorOptions

DTYPES = ("float32", "float16", "float64")


@dataclass(frozen=True, kw_only=True)
class LayerwiseOptions:
    """How the outputs of all nodes are computed, layer by layer.

    Attributes:
        batch_size: Nodes that are computed together; fewer where they have more than 20 million edges, or a row for each edge
            would take more than 1 GiB. A node with more edges is a batch of its own, computed from some of them at a time: layers
            of GraphSAGE, GIN, GCN, GAT, GATv2, RGCN and HGT. Other layers read all its rows at once, if they fit in ``memory``.
        dtype: How the outputs of layers are kept and written: ``float32``, ``float16`` or ``float64``.
        memory: Bytes of memory that the outputs of layers may take on a host, such as ``"20GB"``; more of them lie in files
            of ``scratch``. ``auto``: half of the host's memory.
        scratch: The folder of these files, which have no names and end with the run; that it has room for those of all layers
            is checked before the first one. ``None``: where the output is written; beside a URL, and for evaluation, the folder
            of temporary files.
        self_check: Number of nodes of which the outputs are compared with those of the module's own forward pass before the
            first layer; 0: none.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> LayerwiseOptions(batch_size=1024, memory="2GB").memory_bytes
        2000000000
    """

    most_edges: ClassVar[int] = 20_000_000  # that are computed together
    wait_s: ClassVar[float] = 600.0  # how long a rank that others wait for may show no progress

    batch_size: int = 4096
    dtype: str = "float32"
    memory: int | str = "auto"
    scratch: str | None = None
    self_check: int = 16

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("self_check", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise OptionError(f"layerwise.{name}: expected an integer >= {least}, got {value!r}.")
        one_of("layerwise.dtype", self.dtype, DTYPES)
        if self.memory != "auto":
            parse_bytes("layerwise.memory", self.memory)
        if self.scratch is not None and not Path(self.scratch).is_dir():
            raise OptionError(
                f"layerwise.scratch: there is no folder {self.scratch!r}. Create it, or leave the option out."
            )

    @property
    def memory_bytes(self) -> int:
        """``memory`` in bytes."""
        return TensorOptions().limit_bytes if self.memory == "auto" else parse_bytes("layerwise.memory", self.memory)


@dataclass(frozen=True, kw_only=True)
class RecommendOptions:
    """Which destinations are recommended, and to whom.

    Attributes:
        k: Destinations for each source.
        sources: The sources: a file with an id of your table on each line (``.txt``), a table whose first column has them (CSV
            with a header, Parquet), or node ids as an ``.npy`` file, a list or an array. ``None``: all.
        exclude: What sources have already, and are not recommended: splits of the edges to predict (``train``, with
            those that were appended, ``val``, ``test``) and edge types between the same node types, ``src__rel__dst``, in
            either direction.
        edge_type: Edge type to recommend by, where the model predicts several.
        relation: Relation to recommend by, where edges have several (``links.relation``): its name, or its number.
        index: ``exact``: all pairs are scored. ``hnsw``: destinations are found by faiss, which misses a few of the best and
            takes less time for many destinations; for decoders that are inner products (docs/edges.md).

    Raises:
        OptionError: For a value that is not allowed.

    Example:
        >>> RecommendOptions(k=5).exclude
        ['train', 'val', 'test']
    """

    k: int = 10
    sources: Any = None
    exclude: list[str] = field(default_factory=lambda: ["train", "val", "test"])
    edge_type: str | None = None
    relation: str | int | None = None
    index: str = "exact"

    def __post_init__(self) -> None:
        at_least("recommend.k", self.k, 1)
        one_of("recommend.index", self.index, ("exact", "hnsw"))
        if not isinstance(self.exclude, (list, tuple)) or not all(isinstance(each, str) for each in self.exclude):
            raise OptionError(f"recommend.exclude: expected a list of splits and edge types, got {self.exclude!r:.80}.")
