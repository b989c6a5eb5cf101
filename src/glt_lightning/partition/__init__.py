"""From a user's graph to a partition folder."""
