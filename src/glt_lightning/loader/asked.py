"""One batch that somebody asks for under a key, outside of any epoch, and one batch of several such."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from glt_lightning.base import OptionError
from glt_lightning.loader.collate import Batch, Collate
from glt_lightning.sampling import EpochPlan, Sample, SamplerConfig
from glt_lightning.workers import Producer


@dataclass(frozen=True)
class AskedSample:
    """A sample that is a function of its seeds, its key and the graph alone: `Session.ask`.

    Attributes:
        sample: Its arrays.
        config: How it was sampled.
        collate: Makes a batch of it.
    """

    sample: Sample
    config: SamplerConfig
    collate: Collate

    @property
    def digest(self) -> str:
        """A hash of all arrays."""
        found = hashlib.blake2b(digest_size=16)
        for name, array in sorted(self.sample.arrays.items()):
            found.update(f"{name}:{array.dtype.str}:{array.shape}:".encode())
            found.update(memoryview(array).cast("B") if array.flags.c_contiguous and array.size else array.tobytes())
        return found.hexdigest()

    @staticmethod
    def join(asked: Sequence[AskedSample]) -> Batch:
        """Makes one batch of samples of one configuration: seeds of the first, of the second, ..., and no edge between samples.

        Raises:
            OptionError: For samples of different configurations.
            DataError: For samples that cannot be joined, such as of edges with negatives.

        Example:
            >>> spec = LoaderSpec(name="own", seeds=np.array([7]), num_neighbors=[2], batch_size=1)
            >>> with Session("parts") as session:
            ...     batch = AskedSample.join([session.ask(spec, key=5), session.ask(spec, key=6)])
            >>> batch.n_id[: batch.batch_size]
            tensor([7, 7])
        """
        first = asked[0]
        if any(each.config != first.config for each in asked):
            raise OptionError(
                "AskedSample.join: expected samples of one configuration: fan-outs, types of seeds, edges."
            )
        return first.collate.joined([each.sample.arrays for each in asked])


def ask(
    plan: EpochPlan, config: SamplerConfig, collate: Collate, producer: Producer, key: int, most_bytes: int | None
) -> AskedSample:
    """Makes the only batch of a plan with another key."""
    (request,) = plan.requests(0)
    config = replace(config, most_bytes=most_bytes)
    made = next(producer.stream(config, iter([replace(request, key=key, neighbor_key=None)])))
    # copies: the memory of a producer's batches is for batches that are consumed in turn
    arrays = {name: np.array(array) for name, array in made.arrays.items()}
    return AskedSample(replace(made, arrays=arrays), config, collate)
