"""The traffic between hosts that training is expected to have."""
