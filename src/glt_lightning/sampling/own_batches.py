"""Samplers of the user's program that make whole batches, in the training process (``sampling.batch_sampler``)."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from glt_lightning.base import ClassSpec, DataError, GLTError, OptionError
from glt_lightning.sampling.neighbors import NeighborSource
from glt_lightning.sampling.request import BatchRequest
from glt_lightning.sampling.sample import Draft

OPTION = "sampling.batch_sampler"


class BatchSampler(Protocol):
    """Makes whole batches, in place of the k-hop sampler: for research, in the process that trains.

    A function, or a callable object, named in ``sampling.batch_sampler``. It finds nodes and edges with the methods of the
    source, and passes them to ``sampling.assemble.assemble``.

    Example:
        >>> from glt_lightning.sampling.assemble import assemble
        >>> from glt_lightning.sampling import k_hop
        >>> def by_position(request, source):  # a seed draws its neighbours as its position says, in every epoch alike
        ...     found = k_hop(source, request.typed_seeds(source.config.seed_type), int(request.input_id[0]))
        ...     return assemble(source, request, found)
        >>> spec = LoaderSpec(name="own", split="train", num_neighbors=[2], batch_size=1)
        >>> with Session("parts", SamplingOptions(batch_sampler=by_position)) as session:
        ...     loader = session.make_loader(spec)
        ...     [batch.n_id.tolist() for batch in loader] == [batch.n_id.tolist() for batch in loader]
        True
    """

    def __call__(self, request: BatchRequest, source: NeighborSource) -> Draft:
        """Makes the batch of ``request``, which has its seeds (gids) and the key of its draws."""


@dataclass(frozen=True)
class OwnBatches:
    """A `BatchSampler` with its name. name: the function in errors and checkpoints."""

    name: str
    function: Callable[[BatchRequest, NeighborSource], Draft]

    @classmethod
    def of(cls, given: Any) -> OwnBatches | None:
        """Makes the sampler of ``sampling.batch_sampler``. given: a callable, the import path of a class or function,
        ``{class_path, init_args}``, or None, which returns None. Raises `OptionError`, or `DataError` for a class that cannot
        be imported or constructed."""
        name = cls.name_of(given)
        if name is None:
            return None
        return cls(name, given if callable(given) else ClassSpec.parse(OPTION, given).make())

    @classmethod
    def name_of(cls, given: Any) -> str | None:
        if given is None:
            return None
        if isinstance(given, (str, Mapping, Namespace)):
            return ClassSpec.parse(OPTION, given).text
        if callable(given):
            return getattr(given, "__qualname__", None) or type(given).__qualname__
        raise OptionError(
            f"{OPTION}: expected a class path, the path of a function, {{class_path, init_args}} or a callable that takes a "
            f"request and a source; got {given!r:.200}."
        )

    def sampler(self, source: NeighborSource) -> OwnSampler:
        """Returns a sampler for one thread."""
        return OwnSampler(self, source)


class OwnSampler:
    """Makes batches by a `BatchSampler`."""

    def __init__(self, own: OwnBatches, source: NeighborSource) -> None:
        self._own, self._source = own, source

    def draft(self, request: BatchRequest) -> Draft:
        """Makes one batch. Raises `DataError` with the function and the batch if it fails."""
        where = f"{OPTION}: {self._own.name}:"
        try:
            made = self._own.function(request, self._source)
        except GLTError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise DataError(f"{where} failed on batch {request.number} ({type(error).__name__}: {error}).") from error
        if not isinstance(made, Draft):
            raise DataError(
                f"{where} returned {type(made).__name__} for batch {request.number}; expected a Draft. Return what "
                "assemble gives."
            )
        self._source.config.require_room(made.nbytes)
        return made
