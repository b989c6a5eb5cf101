"""GLT's `channel`: channels for a script's own data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    pass

_REFUSED = {
    "RemoteReceivingChannel": "{name}: a loader with RemoteDistSamplingWorkerOptions receives the batches of a server."
}
_HOMES = {
    "ChannelBase": "glt_lightning.compat.glt.channels",
    "MpChannel": "glt_lightning.compat.glt.channels",
    "QueueTimeoutError": "glt_lightning.compat.glt.channels",
    "SampleMessage": "glt_lightning.compat.glt.channels",
    "ShmChannel": "glt_lightning.compat.glt.channels",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, _REFUSED)
