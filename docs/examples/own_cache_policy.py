"""A policy of one's own for the KV cache: tokens go to the rows in turn, beside the policy of WaferLLM, shifts.

Every token travels from the last row to its own, over many hops, and then stays. With shifts each row hands one token
to its neighbour.
"""

import numpy as np

from wafer_triton import Builder, Cores, Mesh, Slot, account, price
from wafer_triton.algorithms.kv_cache import KvCache

ROWS, ENTRIES, TOKENS = 8, 4, 32


def cache(b):
    """Build a cache of ENTRIES tokens a row, and the token that enters at the last row."""
    b.buffer("cache", (64,), "fp16", "cache", ENTRIES + 1)
    b.buffer("token", (64,), "fp16", "input")
    return b


def in_turn():
    """Token t goes to row t mod ROWS."""
    b = cache(Builder(Mesh(ROWS, 4), "rows in turn"))
    last = ROWS - 1
    for token in range(TOKENS):
        row, slot = token % ROWS, Slot("cache", token // ROWS)
        if row == last:
            b.round(b.local("copy", slot, "token", Cores("y", np.array([last])), size=64), label="put")
        else:
            b.round(b.exchange("y", "token", slot, send=[last], recv=[row]), label="send")
    return b.build()


def shifts():
    """Append a token by WaferLLM's policy."""
    b = cache(Builder(Mesh(ROWS, 4), "shifts"))
    policy = KvCache(ROWS, ENTRIES, "shift")
    for token in range(TOKENS):
        policy.append(b, {"cache": "token"}, token)
    return b.build()


if __name__ == "__main__":
    for schedule in (in_turn(), shifts()):
        hops, cycles = account(schedule).hops, price(schedule).cycles
        print(f"{schedule.name}: {hops} hops, {cycles:,.0f} cycles predicted on the wafer for {TOKENS} tokens")
