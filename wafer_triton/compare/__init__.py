"""Comparison: algorithms beside each other, operations of a layer, and estimates over values of a parameter."""
