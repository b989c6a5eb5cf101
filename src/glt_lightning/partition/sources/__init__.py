"""Sources of graphs: files, folders, tables, OGB, PyG and scipy. `open.open_source` opens any of them."""
