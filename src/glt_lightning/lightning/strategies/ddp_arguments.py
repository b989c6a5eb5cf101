"""DDP's own arguments and messages, under the names of our strategies."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from glt_lightning.base import OptionError

# What follows the name of a strategy in the registry, as Lightning has it for ddp, and the arguments it stands for.
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "_find_unused_parameters_false": {"find_unused_parameters": False},
    "_find_unused_parameters_true": {"find_unused_parameters": True},
}
_GIVEN_BY_LIGHTNING = {"self", "kwargs", "module", "device_ids"}
_UNUSED = "Expected to have finished reduction in the prior iteration"
_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")
_MOST_NAMES = 5


def check_ddp_arguments(strategy: str, names: Iterable[str]) -> None:
    """Raises `OptionError` for a name that is no argument of DDP. DDP itself says so when training starts."""
    signatures = (DDPStrategy.__init__, DistributedDataParallel.__init__)
    known = {name for each in signatures for name in inspect.signature(each).parameters} - _GIVEN_BY_LIGHTNING
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise OptionError(
                f"{strategy}: unknown argument {name!r}.{hint} It takes cluster, and the arguments of Lightning's "
                "DDPStrategy and of torch's DistributedDataParallel."
            )


def unused_parameters(exception: BaseException, module: nn.Module | None, strategy: str) -> OptionError | None:
    """What DDP's error about parameters without a gradient means for this module; None for another error."""
    text = str(exception)
    if not isinstance(exception, RuntimeError) or _UNUSED not in text:
        return None
    names = _names(module, text)
    which = f" ({', '.join(names)})" if names else ""
    return OptionError(
        f"the loss of training_step does not depend on every parameter{which}, and DDP waits for the gradient of each. "
        f"Choose the strategy {strategy}_find_unused_parameters_true, or leave these parameters out of the model."
    )


def _names(module: nn.Module | None, text: str) -> list[str]:
    """Names of the parameters whose numbers are in DDP's message, the first few."""
    found = _INDICES.search(text)
    if module is None or found is None:
        return []
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]  # in DDP's order
    numbers = [int(number) for number in found.group(1).split()]
    names = [trained[number] for number in numbers if number < len(trained)]
    return names if len(names) <= _MOST_NAMES else [*names[:_MOST_NAMES], f"and {len(names) - _MOST_NAMES} more"]
