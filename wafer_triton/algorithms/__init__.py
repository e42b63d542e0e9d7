"""Algorithms on the mesh, as functions that add rounds to a builder: products, reductions, collectives, caches."""
