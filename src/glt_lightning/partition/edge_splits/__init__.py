"""Edges to predict: the splits that a user gives, and the graph without the edges that are held out."""
