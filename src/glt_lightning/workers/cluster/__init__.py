"""A graph held by several processes: its owners, and what asks them."""
