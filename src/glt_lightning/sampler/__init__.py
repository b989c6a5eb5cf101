"""From seeds to Samples: the epoch plan and the k-hop loop."""
