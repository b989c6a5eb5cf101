"""Graph servers, which make batches for other processes, and the client that asks them."""
