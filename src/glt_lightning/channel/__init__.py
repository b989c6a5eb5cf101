"""Recycled memory in which Samples travel."""
