"""Pictures, tables, traces and pages of schedules: what is counted and priced, to look at. Nothing is computed anew."""

from wafer_triton.draw.perfetto import perfetto
from wafer_triton.draw.pictures import links, mesh, schedule, sram, timeline
from wafer_triton.draw.studies import compare, sweep, validation, wafer
from wafer_triton.draw.tiles import inspect
from wafer_triton.draw.trace import rounds

__all__ = [
    "compare",
    "inspect",
    "links",
    "mesh",
    "perfetto",
    "rounds",
    "schedule",
    "sram",
    "sweep",
    "timeline",
    "validation",
    "wafer",
]
