"""The questions to owners of remote rows, one file each, with the code of both sides and the fields of request and reply.

Owners keep no state, so every question may be repeated. Ids are gids, as int32 where all nodes and edges of the graph
can be counted with it, else int64. `sampling.source` describes how questions are sent and answered."""

from __future__ import annotations

from glt_lightning.sampling.questions.expand import Expand
from glt_lightning.sampling.questions.gather import AskedRows, Gather
from glt_lightning.sampling.questions.has_edges import HasEdges
from glt_lightning.sampling.questions.induce import Induce
from glt_lightning.sampling.questions.walk import Walk

QUESTIONS = (Expand, Gather, HasEdges, Induce, Walk)  # all that owners answer

__all__ = ["QUESTIONS", "AskedRows", "Expand", "Gather", "HasEdges", "Induce", "Walk"]
