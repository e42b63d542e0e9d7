"""Running schedules: the executors and how they plan."""
