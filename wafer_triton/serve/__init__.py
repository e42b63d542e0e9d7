"""Serving: many requests on one wafer, simulated event by event over priced schedules. No torch."""
