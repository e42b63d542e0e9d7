"""Shapes of decoders, from their configurations. No torch: schedules are built and priced from a shape alone."""
