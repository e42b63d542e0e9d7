"""What a long run tells whoever asks: about how long it will take, then how far it is."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # of (what, done, total)
Announce = Callable[[float], None]  # of seconds of emulation, about, before it starts


def silent(what: str, done: int, total: int) -> None:
    """No report."""


def unannounced(seconds: float) -> None:
    """No estimate."""


# Of the torch executor with one thread of a 2-core CPU, by timing decoders on meshes of 16 to 256 a side. Other
# machines differ by a small factor, which is what an estimate of this kind is good for.
ROUND_SECONDS = 5e-5
CORE_SECONDS = 1.2e-7  # a core in a round in which all cores compute
MACS_PER_SECOND = 5e9
COUNT_SECONDS = 3e-6  # a core of the lcm grid, to count and price one algorithm of a product of matrices
# Of Triton's interpreter, which runs core after core.
INTERPRETED_SECONDS = 1.4e-2  # a core in a round in which all cores compute


def emulation_seconds(
    rounds: int, cores: int, macs: int, *, computing: int | None = None, interpreted: bool = False
) -> float:
    """About how long rounds on a mesh take to emulate here, with so many multiply-adds of all cores together.

    All cores compute in `computing` of the rounds (None: in all); in the others few do, as along a tree.
    """
    core = INTERPRETED_SECONDS if interpreted else CORE_SECONDS
    all_compute = rounds if computing is None else computing
    return rounds * ROUND_SECONDS + all_compute * cores * core + macs / MACS_PER_SECOND
