"""The placement of a model on a device, and its weights in tiles."""
