"""What the command line does about the strategy, beyond what Lightning does."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import StrategyRegistry
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher

from glt_lightning.base import ClusterOptions, OptionError
from glt_lightning.lightning import GLTServerClientStrategy, GLTStrategy, meet_hosts


def check_strategy(strategy: Any) -> None:
    """Raises `OptionError` for a name that the registry does not have."""
    known = ["auto", *StrategyRegistry.available_strategies()]
    if isinstance(strategy, str) and strategy not in known:
        ours = ", ".join(name for name in known if name.startswith("glt_") and "_find_unused_" not in name)
        near = difflib.get_close_matches(strategy, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise OptionError(
            f"trainer.strategy: expected auto, {ours}, ddp or another strategy of Lightning; got {strategy!r}.{hint}"
        )


def cluster_of_data(cluster: Any, strategy: Any) -> Any:
    """The options for a data module whose graph servers may have; with other strategies it samples what is here."""
    name = strategy if isinstance(strategy, str) else "" if strategy is None else strategy.class_path
    if name in StrategyRegistry:
        kind: Any = StrategyRegistry[name]["strategy"]
    else:
        module, _, last = name.rpartition(".")
        kind = getattr(import_module(module), last) if module else None
    return cluster if isinstance(kind, type) and issubclass(kind, GLTServerClientStrategy) else None


def with_cluster(strategy: Any, cluster: ClusterOptions) -> Any:
    """The strategy with the options of the job's processes; strategies that are not ours have no use for them."""
    if isinstance(strategy, str) and strategy in StrategyRegistry and _is_ours(StrategyRegistry[strategy]["strategy"]):
        strategy = StrategyRegistry.get(strategy)
    if isinstance(strategy, GLTStrategy) and strategy.cluster is None:
        strategy.cluster = cluster
    return strategy


def meet_other_hosts(trainer: Trainer, cluster: ClusterOptions) -> object:
    """Waits for the other hosts of the job where a strategy of Lightning's would wait inside torch, without a word and deaf to
    signals. Strategies of ours wait for themselves. Keep what it returns until there is a process group.

    Raises `PeerError` if a host is missing after ``cluster.deadlines.join_s``, `OptionError` for a strategy without this wait.
    """
    strategy: Any = trainer.strategy
    if trainer.num_nodes == 1 or isinstance(strategy, GLTStrategy) or not hasattr(strategy, "cluster_environment"):
        return None
    if isinstance(strategy.launcher, _MultiProcessingLauncher):
        # Rank 0 is a process that has yet to be forked or spawned, and opens the port where the hosts would meet by now.
        raise OptionError(
            f"trainer.num_nodes: {trainer.num_nodes} hosts need a strategy that starts each rank as a command, and this one "
            "forks or spawns them. Choose ddp, or a strategy of ours (docs/cluster.md)."
        )
    return meet_hosts(strategy, cluster.deadlines.join_s, first_ranks=True)


def _is_ours(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, GLTStrategy)
