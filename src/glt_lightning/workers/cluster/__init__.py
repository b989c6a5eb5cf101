"""A graph held by several processes: the owners of its parts, and the clients that send them requests."""
