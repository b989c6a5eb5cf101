"""Machines that can be rented, by name, as their sellers describe them; nothing here was measured."""

from __future__ import annotations

import difflib

from glt_lightning.base import OptionError

# name: threads of cores, memory, network
NAMED: dict[str, tuple[int, str, str]] = {
    "c7i.8xlarge": (32, "64GiB", "12.5Gbit"),
    "c7i.24xlarge": (96, "192GiB", "37.5Gbit"),
    "m7i.8xlarge": (32, "128GiB", "12.5Gbit"),
    "r7i.8xlarge": (32, "256GiB", "12.5Gbit"),
    "r7i.16xlarge": (64, "512GiB", "25Gbit"),
    "r6i.32xlarge": (128, "1024GiB", "50Gbit"),
    "n2-standard-32": (32, "128GB", "32Gbit"),
    "n2-highmem-64": (64, "512GB", "32Gbit"),
    "Standard_E32s_v5": (32, "256GiB", "16Gbit"),
}


def named_machine(name: str) -> tuple[int, str, str]:
    """Returns (threads of cores, memory, network) of a machine. Raises `OptionError` that lists them."""
    if name not in NAMED:
        near = difflib.get_close_matches(name, NAMED, n=1)
        hint = f" Did you mean {near[0]}?" if near else " Of others give --cores, --memory and --network."
        raise OptionError(f"--machine: expected one of {', '.join(NAMED)}; got {name!r}.{hint}")
    return NAMED[name]
