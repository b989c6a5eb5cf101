"""Who makes Samples for a loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.sampler.sample import Sample


class Producer(Protocol):
    """Makes the batches of any number of loaders, in the order they are asked for."""

    @property
    def restarts(self) -> int:
        """Sampler processes started again so far."""

    @property
    def fresh_slots(self) -> int:
        """Batches that came in one-off memory because the consumer held every slot."""

    def stream(self, config: SamplerConfig, requests: Iterator[BatchRequest]) -> Iterator[Sample]:
        """Yields one `Sample` per request. Nothing happens before the first ``next``; closing the iterator early is fine."""

    def close(self) -> None:
        """Ends every stream and frees what the producer holds. Safe to call twice."""
