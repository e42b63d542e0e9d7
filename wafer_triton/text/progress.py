"""Reports of a long run to a caller: its expected time before it starts, then its progress."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # of the thing that is counted, its number done, and its total
Announce = Callable[[float], None]  # of seconds of emulation, about, before it starts


def silent(what: str, done: int, total: int) -> None:
    """Report nothing."""


def unannounced(seconds: float) -> None:
    """Announce nothing."""


# Of the torch executor with one thread of a 2-core CPU, by timing decoders on meshes of 16 to 256 a side. Other
# machines differ by a small factor, which is the precision of such an estimate.
ROUND_SECONDS = 5e-5
CORE_SECONDS = 1.2e-7  # a core in a round in which all cores compute
MACS_PER_SECOND = 5e9
COUNT_SECONDS = 3e-6  # a core of the lcm grid, to count and price one algorithm of a product of matrices
CHUNK_SECONDS = 1e-4  # a chunk of a prompt in a simulation of serving
# Of Triton's interpreter, which runs core after core.
INTERPRETED_SECONDS = 1.4e-2  # a core in a round in which all cores compute


def emulation_seconds(
    rounds: int, cores: int, macs: int, *, computing: int | None = None, interpreted: bool = False
) -> float:
    """Return about the seconds to emulate rounds on a mesh here; `macs` are the multiply-adds of all cores together.

    All cores compute in `computing` of the rounds (None: in all); in the others few do, as along a tree.
    """
    core = INTERPRETED_SECONDS if interpreted else CORE_SECONDS
    all_compute = rounds if computing is None else computing
    return rounds * ROUND_SECONDS + all_compute * cores * core + macs / MACS_PER_SECOND
