"""Placing a model on a device: the need of a core, the regions of its blocks, and moves between them. No torch."""
