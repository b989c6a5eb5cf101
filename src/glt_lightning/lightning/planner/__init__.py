"""What a run will take, before it runs: the rules, the constants that they need, and a comparison with what a run took."""
