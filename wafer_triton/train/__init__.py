"""Training on wafers of dies: streamed products with values, mapping of flows onto links, and a planner (TEMP)."""
