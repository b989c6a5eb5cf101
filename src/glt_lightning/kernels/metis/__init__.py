"""METIS, called in a process of its own."""
