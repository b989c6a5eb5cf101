"""Rows of the user's own over a partitioned graph: tables that the ranks of a job share, and `DistGraph` over them.

numpy only, but for ``dist_*.py``, which give torch tensors.
"""
