"""Recycled memory slots for batches, and the messages between a rank and its sampler processes."""

from glt_lightning.channel.slots import PinMemory, SharedSlot, Slot, SlotPool, SlotWriter
from glt_lightning.lazy import lazy_names

__all__ = ["PinMemory", "SharedSlot", "Slot", "SlotPool", "SlotWriter"]

_INSIDE = (
    "{name}: batches travel in slots that loaders own. Use a loader, or multiprocessing.Queue for data of your own."
)
_GLT = ("ChannelBase", "MpChannel", "QueueTimeoutError", "RemoteReceivingChannel", "ShmChannel")
__getattr__ = lazy_names(__name__, {}, dict.fromkeys(_GLT, _INSIDE))
