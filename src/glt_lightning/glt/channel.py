"""GLT's `channel`: channels for a script's own data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.lazy import lazy_names

if TYPE_CHECKING:
    from glt_lightning.glt.channels import (
        ChannelBase as ChannelBase,
        MpChannel as MpChannel,
        QueueTimeoutError as QueueTimeoutError,
        SampleMessage as SampleMessage,
        ShmChannel as ShmChannel,
    )

_REFUSED = {
    "RemoteReceivingChannel": "{name}: a loader with RemoteDistSamplingWorkerOptions receives the batches of a server."
}
_HOMES = {
    "ChannelBase": "glt_lightning.glt.channels",
    "MpChannel": "glt_lightning.glt.channels",
    "QueueTimeoutError": "glt_lightning.glt.channels",
    "SampleMessage": "glt_lightning.glt.channels",
    "ShmChannel": "glt_lightning.glt.channels",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, _REFUSED)
