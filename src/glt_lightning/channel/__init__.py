"""Recycled memory slots for batches, and the messages between a rank and its sampler processes."""

from typing import TYPE_CHECKING

from glt_lightning.channel.slots import PinMemory, SharedSlot, Slot, SlotPool, SlotWriter
from glt_lightning.lazy import lazy_names

if TYPE_CHECKING:
    from glt_lightning.glt.channels import (
        ChannelBase as ChannelBase,
        MpChannel as MpChannel,
        QueueTimeoutError as QueueTimeoutError,
        SampleMessage as SampleMessage,
        ShmChannel as ShmChannel,
    )

# GLT's channels, for data of a script's own
_GLT = ("ChannelBase", "MpChannel", "QueueTimeoutError", "SampleMessage", "ShmChannel")

__all__ = ["PinMemory", "SharedSlot", "Slot", "SlotPool", "SlotWriter", *_GLT]

__getattr__, __dir__ = lazy_names(
    __name__,
    dict.fromkeys(_GLT, "glt_lightning.glt.channels"),
    {
        "RemoteReceivingChannel": "{name}: a loader with RemoteDistSamplingWorkerOptions receives the batches of a server."
    },
)
