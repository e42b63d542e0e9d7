"""Placing a model on a device: the need of a core, the regions of its blocks, and the moves between. No torch."""
