"""Reports of a training run and of a partition: what was recorded or counted, as tables, pages and plots."""
