"""Pictures, tables, traces and pages of schedules: they show counts and prices, and compute nothing anew."""

from wafer_triton.draw.desk import curves, heat, pareto
from wafer_triton.draw.explained import explanation
from wafer_triton.draw.pages import page
from wafer_triton.draw.passes import token
from wafer_triton.draw.pictures import links, mesh, schedule, sram, timeline
from wafer_triton.draw.scenes import scene
from wafer_triton.draw.studies import compare, reproduction, validation, wafer
from wafer_triton.draw.summaries import values
from wafer_triton.draw.tiles import inspect
from wafer_triton.draw.times import request
from wafer_triton.draw.trace import rounds
from wafer_triton.draw.trace_file import perfetto

__all__ = [
    "compare",
    "curves",
    "explanation",
    "heat",
    "inspect",
    "links",
    "mesh",
    "page",
    "pareto",
    "perfetto",
    "reproduction",
    "request",
    "rounds",
    "scene",
    "schedule",
    "sram",
    "timeline",
    "token",
    "validation",
    "values",
    "wafer",
]
