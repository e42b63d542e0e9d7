"""Exact counts of a schedule: hops, links, routes, SRAM. No value is computed."""
