"""Commands and options that went in 0.2, with what answers instead; for one release the parser says so in one line."""

from __future__ import annotations

# What a user typed after `wafer-triton`, such as "train" or "estimate energy".
COMMANDS: dict[str, str] = {}
OPTIONS: dict[str, str] = {}
