"""The work of the partitioner as pure tasks, which any process that sees the folder can run.

A task is a named function of ``table.py`` with JSON arguments and a JSON result. It reads slices of the user's data and of
files of earlier tasks, writes its own files, and returns a few numbers. Run twice, or killed half-way, it does no harm. What
one task has for another goes through files (``exchange.py``): a task that deals records out writes one file, sorted by bucket,
and a task that sorts reads its buckets from each. ``run.py`` runs tasks, skips those that an interrupted run has finished, and
reports progress; an executor of `concurrent.futures` says where they run (``processes.py``).
"""
