"""What reports of partitions and of runs share: numbers as people read them, tables, plots, one HTML page."""
