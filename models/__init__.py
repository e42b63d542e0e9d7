"""Decoder models on a virtual wafer: configuration, weights and everything built from mesh operations."""
