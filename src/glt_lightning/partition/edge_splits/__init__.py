"""Edges to predict: what a user gives, and the graph without those that are held out."""
