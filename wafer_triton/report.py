"""What a long run tells whoever asks: about how long it will take, then how far it is."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # of (what, done, total)
Announce = Callable[[float], None]  # of seconds of emulation, about, before it starts


def silent(what: str, done: int, total: int) -> None:
    """No report."""


def unannounced(seconds: float) -> None:
    """No estimate."""


# Of the torch executor with one thread of a 2-core CPU, by timing decoders on meshes of 16 to 128 a side. Other
# machines differ by a small factor, which is what an estimate of this kind is good for.
ROUND_SECONDS = 5e-5
CORE_SECONDS = 1.3e-8  # a core in a round
PROMPT_SECONDS = 6e-8  # a core in a round of prefill, whose tiles are matrices
PRODUCT_SECONDS = 1.2e-7  # a core in a round of a product that stands alone, whose rounds take all cores
MACS_PER_SECOND = 5e9
COUNT_SECONDS = 3e-6  # a core of the lcm grid, to count and price one algorithm of a product of matrices
# Of Triton's interpreter, which runs core after core.
INTERPRETED_SECONDS = 5e-3  # a core in a round


def emulation_seconds(
    rounds: float,
    cores: int,
    macs: float = 0,
    *,
    prompt: bool = False,
    product: bool = False,
    interpreted: bool = False,
) -> float:
    """About how long rounds on a mesh take to emulate here, with so many multiply-adds of all cores together."""
    core = PRODUCT_SECONDS if product else PROMPT_SECONDS if prompt else CORE_SECONDS
    core = INTERPRETED_SECONDS if interpreted else core
    return rounds * (ROUND_SECONDS + core * cores) + macs / MACS_PER_SECOND
