"""Pictures and tables: `draw.schedule` and `draw.timeline` show a schedule's rounds."""

from wafer_triton.draw.trace import schedule, timeline

__all__ = ["schedule", "timeline"]
