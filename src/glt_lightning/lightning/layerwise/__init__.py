"""Layer-wise inference in a Trainer."""
