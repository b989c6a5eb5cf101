"""Tables (CSV, Parquet, ...) as a graph: columns to arrays, user ids to numbers."""
