"""Recycled memory slots for batches, and the messages between a rank and its sampler processes."""

from glt_lightning.channel.slots import PinMemory, SharedSlot, Slot, SlotPool, SlotWriter

__all__ = ["PinMemory", "SharedSlot", "Slot", "SlotPool", "SlotWriter"]
