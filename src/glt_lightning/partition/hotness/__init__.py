"""Expected accesses of nodes by batches, and each part's list of its hottest remote rows."""
