"""Layer-wise inference: the outputs of all nodes, exactly, each layer over the whole graph before the next one."""
