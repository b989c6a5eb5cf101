"""What an epoch was bound by."""

from __future__ import annotations

from glt_lightning.sampling import Counters

MOST_WAIT = 0.1  # share of training time; below it, faster samplers would hardly shorten an epoch

# What may help, by verdict.
ADVICE = {
    "cores": (
        "More threads want to run than there are cores: fewer ranks, sampling.num_workers or threads of torch "
        "(OMP_NUM_THREADS), or less other work on this host, may help."
    ),
    "compute": "Samplers keep up: a faster device or a smaller model would shorten an epoch.",
    "sampling": "More sampling.num_workers (of graph servers: in their configuration) or smaller num_neighbors may help.",
    "network": (
        "A larger cache.ratio, a partition.algorithm that cuts fewer edges (metis, streaming), fewer bytes per row "
        "(partition.storage) or more sampling.concurrency may help."
    ),
    "disk": "A larger cache.memory, a faster disk or fewer bytes per row (partition.storage) may help.",
    "copy": "Fewer bytes per row (partition.storage), more sampling.num_workers or more memory may help.",
}


def stages(counters: Counters) -> dict[str, float]:
    """Seconds that samplers spent, by what they spent them on."""
    return {
        "sampling": counters.sample_s,
        "network": counters.remote_s,
        "disk": counters.disk_s,
        "copy": counters.gather_s,
    }


def verdict(wait_share: float, core_wait_share: float, counters: Counters) -> str:
    """``cores`` where the threads of the trainer lose more time to others than it waits for batches, ``compute`` where it
    hardly waits for either, else what the samplers spent most time on: ``sampling``, ``network``, ``disk`` or ``copy``."""
    lost = (1 - wait_share) * core_wait_share  # while it waits for a batch, its threads want no core
    if lost >= MOST_WAIT and lost > wait_share:
        return "cores"
    if wait_share < MOST_WAIT:
        return "compute"
    spent = stages(counters)
    return max(spent, key=lambda stage: spent[stage])
