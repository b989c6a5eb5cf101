"""Writing the arrays of parts: one pass over edges, one over attributes, in bounded memory."""
