"""Where a model lies on a device."""
