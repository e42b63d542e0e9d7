"""Times of serving that are given by hand, for tests of the simulation alone."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Given:
    """Times by a few numbers, see `pipeline.Times`: a stage of decode takes `step`, and `extra` for each entry."""

    batch: int = 4
    at_once: int = 1
    pool: int = 100
    rows: int = 8
    longest: int = 200
    held: float = inf
    step: float = 1.0
    extra: float = 0.0
    depth: int = 3  # regions of decode
    fill: tuple[float, ...] = (0.5, 0.25)  # seconds of each region of prefill, and a hundredth a token
    moving: float = 2.0
    handing: float = 0.0

    def stages(self, tokens, past, last):
        return tuple(each * (1 + tokens / 100) for each in self.fill)

    def hand_over(self, tokens):
        return self.handing * tokens

    def switch(self):
        return self.moving

    def attend(self, entries):
        return self.extra * (entries - 1)

    def latency(self, count, attending):
        return self.depth * self.slowest(count, attending)

    def slowest(self, count, attending):
        return self.step * (1 + 0.25 * (count - 1)) + attending

    def read(self, count):
        return 10.0

    def cached(self, tokens):
        return float(tokens)
