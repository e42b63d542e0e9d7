"""Algorithms for the mesh, each a function that adds steps to a `Builder`: products, reductions, collectives."""
