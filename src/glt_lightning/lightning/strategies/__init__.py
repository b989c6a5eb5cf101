"""The strategies, and what each process of a run opens, watches and closes."""
