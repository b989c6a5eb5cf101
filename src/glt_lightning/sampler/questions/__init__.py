"""The questions to owners of remote rows, one file each. `sampler.source` tells how they travel."""

from __future__ import annotations

from glt_lightning.sampler.questions.expand import Expand
from glt_lightning.sampler.questions.gather import AskedRows, Gather
from glt_lightning.sampler.questions.has_edges import HasEdges
from glt_lightning.sampler.questions.induce import Induce
from glt_lightning.sampler.questions.walk import Walk

QUESTIONS = (Expand, Gather, HasEdges, Induce, Walk)  # that owners answer

__all__ = ["QUESTIONS", "AskedRows", "Expand", "Gather", "HasEdges", "Induce", "Walk"]
