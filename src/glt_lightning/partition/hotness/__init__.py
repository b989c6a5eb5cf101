"""How often each node is expected in batches, and the rows that a part wants of others."""
