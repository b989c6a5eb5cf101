"""How batches travel: recycled memory slots and the messages about them."""

from glt_lightning.channel.slots import PinMemory, SharedSlot, Slot, SlotPool, SlotWriter

__all__ = ["PinMemory", "SharedSlot", "Slot", "SlotPool", "SlotWriter"]
