"""Numbers as people read them: at most four significant digits, thousands separated, a unit beside each.

`UNITS` is the one place that says which unit a field has. Machines read full numbers instead: `--json` and CSV.
"""

from __future__ import annotations

from math import floor, isfinite, log10
from typing import Any

PREDICTED = "predicted on the wafer"
EMULATED = "emulated on this machine"

# The unit of every numeric field that is shown, of devices, estimates, counts and runs. "%" is of a share, "+-%" of one
# by which a number may differ, "side" of a square mesh, "x" of a ratio, "id" of a number that counts nothing, "" of one
# that has no dimension.
UNITS: dict[str, str] = {
    # time and rate
    "cycles": "cycles",
    "compute_cycles": "cycles",
    "communication_cycles": "cycles",
    "link_cycles": "cycles",
    "cycles_per_layer": "cycles",
    "embedding_cycles": "cycles",
    "head_cycles": "cycles",
    "compute_cycles_per_layer": "cycles",
    "communication_cycles_per_layer": "cycles",
    "steps": "cycles",
    "hop_cycles": "cycles",
    "stage_cycles": "cycles",
    "seconds": "s",
    "load_seconds": "s",
    "prefill_seconds": "s",
    "replacement_seconds": "s",
    "decode_seconds": "s",
    "against_seconds": "s",
    "emulation_seconds": "s",
    "tokens_per_second": "tokens/s",
    "clock_hz": "Hz",
    # energy
    "joules": "J",
    "joules_per_token": "J/token",
    "wafer_joules": "J",
    "gpu_joules": "J",
    "energy_ratio": "x",
    "padding": "x",
    "power_watts": "W",
    # counts
    "rounds": "rounds",
    "stages": "stages",
    "hops": "hops",
    "routes": "routes",
    "estimated_routes": "routes",
    "flows": "flows",
    "messages": "messages",
    "macs": "multiply-adds",
    "macs_per_cycle_fp16": "multiply-adds/cycle",
    "macs_per_cycle_fp32": "multiply-adds/cycle",
    # bytes
    "link_bytes": "B",
    "busiest_link_bytes": "B",
    "sram_bytes": "B",
    "sram_peak_bytes": "B",
    "weight_bytes": "B",
    "entry_bytes": "B",
    "link_bytes_per_cycle": "B/cycle",
    "activated_bytes": "B",
    "kv_bytes": "B",
    # shares
    "s_mbu": "%",
    "s_mbu_in_regions": "%",
    "mbu": "%",
    "s_mfu": "%",
    "mfu": "%",
    "mac_utilisation": "%",
    "sram_bandwidth_utilisation": "%",
    "error_band": "+-%",
    "error": "%",
    "relative_rms": "%",
    # places
    "mesh": "side",
    "prefill_mesh": "side",
    "decode_mesh": "side",
    "rows": "cores",
    "cols": "cores",
    "groups": "groups",
    "head_groups": "groups",
    "estimated_head_groups": "groups",
    "regions": "regions",
    "decode_regions": "regions",
    "device_regions": "regions",
    "gpus": "GPUs",
    "step": "cores",
    "best": "plans",
    # models and texts
    "passes": "steps",
    "batch": "tokens",
    "distinct_experts": "experts",
    "tokens_per_expert": "tokens",
    "most_tokens_per_expert": "tokens",
    "seconds_per_pass": "s",
    "dollars_per_million_tokens": "$",
    "accuracy": "",
    "layers": "layers",
    "layers_per_region": "layers",
    "heads": "heads",
    "kv_heads": "heads",
    "dim": "elements",
    "ffn": "elements",
    "m": "elements",
    "k": "elements",
    "n": "elements",
    "input": "tokens",
    "output": "tokens",
    "tokens": "tokens",
    "window": "tokens",
    "context": "tokens",
    "kv_tokens": "tokens",
    "concat_tokens": "tokens",
    "shift_tokens": "tokens",
    "differ": "positions",
    "first": "id",
    "wanted": "id",
    "got": "id",
    "largest": "",
    "nats": "nats",
    "perplexity": "",
    "fp32_perplexity": "",
}

# What a field is called where its name alone does not say it.
LABELS: dict[str, str] = {
    "seconds_per_pass": "time of a pass",
    "activated_bytes": "weights in use, all passes",
    "kv_bytes": "keys and values, all passes",
    "s_mbu": "S-MBU",
    "s_mbu_in_regions": "at most, in regions",
    "experts": "experts in prefill",
    "mbu": "MBU",
    "s_mfu": "S-MFU",
    "mfu": "MFU",
    "distinct_experts": "distinct experts a layer",
    "tokens_per_expert": "tokens of an expert that is hit",
    "most_tokens_per_expert": "most tokens of an expert",
    "dollars_per_million_tokens": "a million tokens",
    "seconds": "time",
    "load_seconds": "time to load",
    "prefill_seconds": "prefill time",
    "replacement_seconds": "time to place weights and cache anew",
    "decode_seconds": "decode time",
    "emulation_seconds": "emulation time",
    "joules": "energy",
    "joules_per_token": "energy per token",
    "wafer_joules": "energy of the wafer",
    "gpu_joules": "energy of the GPUs",
    "energy_ratio": "energy of the GPUs over the wafer's",
    "mac_utilisation": "share of peak multiply-adds",
    "sram_bandwidth_utilisation": "share of SRAM bandwidth",
    "link_bytes": "over links",
    "busiest_link_bytes": "busiest link",
    "sram_bytes": "core's SRAM",
    "sram_peak_bytes": "SRAM peak",
    "weight_bytes": "weights on a core",
    "entry_bytes": "one token on a core",
    "macs": "multiply-adds",
    "padding": "multiply-adds over the model's",
    "cores": "cores that compute",
    "trim": "trimmed",
    "hop_cycles": "hop",
    "stage_cycles": "routing stage",
    "clock_hz": "clock",
    "link_bytes_per_cycle": "link",
    "macs_per_cycle_fp16": "a core in fp16",
    "macs_per_cycle_fp32": "a core in fp32",
    "power_watts": "power",
    "like": "constants fitted on",
    "relayed": "relayed core by core",
    "outside": "outside of what was measured",
    "as_if": "priced as if it fitted",
    "against_seconds": "its time",
    "gpus": "on",
    "steps": "cycles of a layer by step",
    "concat_tokens": "KV cache by concatenation",
    "shift_tokens": "KV cache by shift",
    "kv_tokens": "KV cache",
    "decode_regions": "regions that decode needs",
    "device_regions": "regions of the device",
    "error": "largest error",
    "largest": "largest logit error",
    "relative_rms": "RMS logit error, relative",
    "differ": "positions with another likeliest token",
    "first": "the first of them",
    "wanted": "the token that fp32 says there",
    "got": "the token said instead",
    "nats": "negative log likelihood",
}

# Units that change with the size of the number, the largest first; any other unit stays.
SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")),
    "J": ((1, "J"), (1e-3, "mJ"), (1e-6, "uJ"), (1e-9, "nJ")),
    "B": ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")),
    "Hz": ((1e9, "GHz"), (1e6, "MHz"), (1, "Hz")),
}


def digits(number: float) -> str:
    """A number in at most four significant digits, its thousands separated."""
    rounded = float(f"{number:.4g}")
    if not isfinite(rounded) or rounded == 0:
        return f"{rounded:g}"
    if not 1e-4 <= abs(rounded) < 1e15:
        return f"{rounded:.4g}"
    text = f"{rounded:,.{max(0, 3 - floor(log10(abs(rounded))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def quantity(number: float, unit: str) -> str:
    """A number beside its unit, which is scaled to the number: 49152 "B" is 48 KiB, 0.5 "%" is 50 %."""
    if unit == "id":
        return f"{number:d}"
    if unit == "side":
        return f"{number} x {number} cores"
    if unit in ("%", "+-%"):
        return f"{unit[:-1]}{digits(100 * number)} %"
    whole, slash, per = unit.partition("/")
    scales = SCALES.get(whole, ((1, whole),))
    factor, scaled = next((scale for scale in scales if abs(number) >= scale[0]), scales[-1]) if number else (1, whole)
    text = digits(number / factor)
    if text == "1" and len(scaled) > 2:
        scaled = scaled.removesuffix("s")  # 1 token
    return f"{text} {scaled}{slash}{per}".rstrip()


def asked(field: str, value: Any) -> str:
    """A value that the user gave: as `shown`, but whole numbers in full, as rounded ones would be another request."""
    unit = UNITS.get(field, "")
    if type(value) is int and unit not in SCALES and unit != "side":
        return f"{value:,} {unit.removesuffix('s') if value == 1 else unit}".rstrip()
    return shown(field, value)


def label(field: str) -> str:
    """What people call a field."""
    return LABELS.get(field, field.replace("_", " ").strip())


def shown(field: str, value: Any) -> str:
    """A field's value for people: a number in the unit of its field, anything else as it says itself.

    Raises KeyError for a number whose field has no unit in `UNITS`.
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return quantity(value, UNITS[field]) if isinstance(value, int | float) else str(value)
