"""Where a model lies on a device: what a core needs, which regions hold what, and the moves between places. No torch."""
