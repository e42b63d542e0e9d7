"""A results file as a Markdown table, its figures with their bounds, and plots.

python bench/harness/report.py bench/results/cpu.json [--plots folder]
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

FACTS = ("what", "mesh", "tile", "dtype", "exchange", "rounds")
NUMBERS = ("median (ms)", "per second", "to emulation", "to BLAS", "of bandwidth")
PLAIN = ("blas", "copy", "transformers")  # rows without a mesh
# a colour and a marker for a row in every plot; the colours are distinct for colour-blind readers (Okabe and Ito)
LOOKS = {
    "explicit": ("#0072b2", "o"),
    "explicit, a launch a round": ("#56b4e9", "v"),
    "elided": ("#d55e00", "s"),
    "elided, tiles by loads": ("#e69f00", "^"),
    "elided, tiles by warp groups": ("#cc79a7", "D"),
    "emulation": ("#000000", "x"),
    "blas": ("#009e73", "P"),
    "copy": ("#7f7f7f", "+"),
    "public call, explicit": ("#332288", "<"),
    "public call, elided": ("#999933", ">"),
    "transformers": ("#882255", "*"),
}
Row = dict[str, Any]


def table(results: Row) -> str:
    """Return one row a benchmark; times are emulation times of the machine that the last line names.

    "to emulation" and "to BLAS" are the speed in units of that row of the same group. "of bandwidth" is a ratio of
    times: the bytes that must move at the measured copy bandwidth, over the time taken.
    """
    head = ["case", *FACTS[1:], *NUMBERS]
    lines = [head, ["---"] * len(FACTS) + ["---:"] * len(NUMBERS)]
    for record in results["benchmarks"]:
        seconds, facts = record["stats"]["median"], {"what": record.get("name", ""), **record["extra_info"]}
        ratios = [_cell(ratio(results, record, to), "x") for to in ("emulation", "blas")]
        share = _cell(facts.get("fraction_of_bandwidth"), "%")
        numbers = [f"{seconds * 1e3:.3g}", f"{1 / seconds:,.1f}", *ratios, share]
        lines.append([*(str(facts.get(fact, "")) for fact in FACTS), *numbers])
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{rows}\n\nEmulation time on {machine(results)}."


def model_table(results: Row) -> str:
    """Return a table of whole models: emulation time beside transformers', and the peak memory of a process."""
    lines = [
        "| case | mesh | SRAM of a core | exchange | median (ms) | transformers (ms) | times transformers | bound |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    peaks = [
        "| case | mesh | dtype | weights (MB) | peak memory (MB) |",
        "| --- | --- | --- | ---: | ---: |",
    ]
    for record in results["benchmarks"]:
        facts = record["extra_info"]
        if "peak_bytes" in facts:
            bytes_ = f"{facts['weight_bytes'] / 1e6:.0f} | {facts['peak_bytes'] / 1e6:.0f}"
            peaks.append(f"| {facts['what']} | {facts['mesh']} | {facts['dtype']} | {bytes_} |")
            continue
        place = f"{facts['mesh']} | {facts['sram_bytes_per_core'] // 1024} KiB | {facts['exchange']}"
        seconds = f"{record['stats']['median'] * 1e3:.4g} | {facts['transformers_median_s'] * 1e3:.4g}"
        bound = "" if facts["at_most_times"] is None else f"{facts['at_most_times']:g}x"
        lines.append(f"| {facts['what']} | {place} | {seconds} | {facts['times_transformers']:.3g}x | {bound} |")
    return "\n".join([*lines, "", *peaks])


def machine(results: Row) -> str:
    """Return the machine, in words."""
    m = results["machine_info"]
    if "gpu" in m:
        return f"{m['gpu']}, driver {m['driver']}, CUDA {m['cuda']}, torch {m['torch']}, triton {m['triton']}"
    return f"{m['cpu']}, {m['threads']} of {m['cores']} cores used, torch {m['torch']}"


def ratio(results: Row, record: Row, to: str) -> float | None:
    """Return a benchmark's speed in units of row `to` of its group; None for that row itself or without one."""
    if not record.get("group") or record["extra_info"].get("exchange") == to:
        return None
    peers = (other for other in results["benchmarks"] if other.get("group") == record["group"])
    reference = next((other for other in peers if other["extra_info"].get("exchange") == to), None)
    return None if reference is None else reference["stats"]["median"] / record["stats"]["median"]


def _cell(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:.0%}" if unit == "%" else f"{value:.3g}x"


# --- figures ---


class Figure(NamedTuple):
    """One measured number with its bound: the least that will do, or the most if `least` is False."""

    case: str
    number: str
    bound: float
    match: Row  # facts of the row that it is read from
    read: Callable[[Row, Row], float | None]  # of the results and that row
    least: bool = True


def _to(row: str) -> Callable[[Row, Row], float | None]:
    return lambda results, record: ratio(results, record, row)


def _fact(name: str) -> Callable[[Row, Row], float | None]:
    return lambda results, record: record["extra_info"].get(name)


def _ms(results: Row, record: Row) -> float:
    return float(record["stats"]["median"]) * 1e3


def _beside_kernels(results: Row, record: Row) -> float | None:
    """Return the milliseconds of a public call beyond its kernels."""
    kernels = record["extra_info"]["exchange"].removeprefix("public call, ")
    group = (other for other in results["benchmarks"] if other.get("group") == record.get("group"))
    alone = next((other for other in group if other["extra_info"].get("exchange") == kernels), None)
    return None if alone is None else _ms(results, record) - _ms(results, alone)


def _goals() -> Iterator[Figure]:
    exchanges = ("explicit", "elided")
    for side, tile, bound in ((16, 64, 0.6), (32, 64, 0.6), (64, 64, 0.6), (32, 128, 0.5), (64, 128, 0.5)):
        match = {"what": "MeshGEMM", "exchange": "explicit", "dtype": "bf16", "mesh": f"{side}x{side}"}
        match |= {"tile": f"{tile}x{tile}"}
        case = f"explicit MeshGEMM, {side} x {side} cores, {tile} x {tile} tiles, bf16"
        if tile == 64:
            yield Figure(case, "times the PyTorch emulation", 3, match, _to("emulation"))
        yield Figure(case, "of the exchange limit", bound, match, _fact("fraction_of_exchange_limit"))
    for size, bound in ((4096, 0.8), (8192, 0.92)):
        for side in (32, 64):
            match = {"what": "MeshGEMM", "exchange": "elided", "dtype": "bf16", "mesh": f"{side}x{side}"}
            case = f"elided MeshGEMM, {size}^3, P = {side}, bf16"
            yield Figure(case, "of cuBLAS", bound, match | {"shape": [size] * 3}, _to("blas"))
    for k, n, side, *bounds in (
        (4096, 14336, 64, 0.65, 0.85),
        (16384, 16384, 64, 0.85, 0.9),
        (16384, 16384, 128, 0.85, 0.9),
    ):
        for exchange, bound in zip(exchanges, bounds, strict=True):
            match = {"what": "MeshGEMV", "exchange": exchange, "dtype": "bf16", "mesh": f"{side}x{side}"}
            case = f"{exchange} MeshGEMV, [1, {k}] x [{k}, {n}], P = {side}, bf16"
            yield Figure(case, "of cuBLAS", bound, match | {"shape": [1, k, n]}, _to("blas"))
    layer = {"what": "decode layer, llama3-8b"}
    for exchange, bound in (("explicit", 0.24), ("elided", 0.165)):
        case = f"one Llama-3-8B decode layer, {exchange}, 64 x 64 cores"
        yield Figure(case, "ms", bound, layer | {"exchange": exchange, "mesh": "64x64"}, _ms, least=False)
    match = layer | {"exchange": "explicit", "mesh": "660x660"}
    yield Figure("one Llama-3-8B decode layer, explicit, 660 x 660 cores", "ms", 1.5, match, _ms, least=False)
    match = {"what": "8 ring shifts", "exchange": "explicit", "mesh": "660x660"}
    yield Figure("8 ring shifts, 660 x 660 cores, 4 x 4 tiles", "ms", 0.25, match, _ms, least=False)
    for exchange in exchanges:
        match = {"what": "mesh_gemm", "exchange": f"public call, {exchange}", "mesh": "16x16", "tile": "64x64"}
        case = f"a public call of mesh_gemm, {exchange}, 16 x 16 cores, 64 x 64 tiles"
        yield Figure(case, "ms more than its kernels", 0.3, match, _beside_kernels, least=False)
    for what, bound in (("prefill of 256 tokens", 100), ("decode step", 5), ("first generate of 8 tokens", 20e3)):
        match = {"what": f"{what}, SmolLM2's sizes", "exchange": "explicit", "mesh": "24x24"}
        yield Figure(f"{what}, SmolLM2's sizes, explicit, 24 x 24 cores", "ms", bound, match, _ms, least=False)


GOALS = tuple(_goals())


def steps(results: Row) -> list[str]:
    """Return lines with the time of a decode step including the host, beside the timed replay alone."""
    return [
        f"{record['extra_info']['what']}, {record['extra_info']['exchange']}: {whole * 1e3:.3g} ms a step with the "
        f"host's part, {record['stats']['median'] * 1e3:.3g} ms the replay alone"
        for record in results["benchmarks"]
        if (whole := record["extra_info"].get("whole_step_seconds")) is not None
    ]


def figures(results: Row) -> list[Row]:
    """Return each goal with its value and "met", "not met" or "not measured"."""
    return [_judged(results, goal) for goal in GOALS]


def _judged(results: Row, goal: Figure) -> Row:
    facts = ((record, record["extra_info"]) for record in results["benchmarks"])
    records = [record for record, known in facts if all(known.get(name) == value for name, value in goal.match.items())]
    value = goal.read(results, records[0]) if records else None
    judged = {"case": goal.case, "number": goal.number, "bound": goal.bound, "least": goal.least, "value": value}
    if value is None:
        return judged | {"verdict": "not measured"}
    good = value >= goal.bound if goal.least else value < goal.bound
    return judged | {"verdict": "met" if good else "not met"}


def figure_table(judged: list[Row]) -> str:
    """Return the figures as a Markdown table."""
    lines = ["| case | number | value | bound | verdict |", "| --- | --- | ---: | ---: | --- |"]
    for figure in judged:
        value = "" if figure["value"] is None else f"{figure['value']:.3g}"
        bound = f"{'at least' if figure['least'] else 'under'} {figure['bound']:g}"
        lines.append(f"| {figure['case']} | {figure['number']} | {value} | {bound} | {figure['verdict']} |")
    return "\n".join(lines)


# --- plots ---


def plots(results: Row, folder: Path, name: str) -> list[Path]:
    """Draw time, and speed over the row "emulation", by mesh and tile size: a PNG and an SVG for each operation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    points = _points(results)
    for what in sorted({point["what"] for point in points}):
        figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), squeeze=False)
        for column, (over, fixed) in enumerate((("side", "tile"), ("tile", "side"))):
            line = _line([point for point in points if point["what"] == what], over, fixed)
            for row, (label, key) in enumerate(
                (("emulation time (ms)", "ms"), ("times the PyTorch emulation", "ratio"))
            ):
                _draw(axes[row][column], line, over, key)
                axes[row][column].set(xlabel=f"{'mesh' if over == 'side' else 'tile'} side", ylabel=label)
            held = f", {'tile' if fixed == 'tile' else 'mesh'} side {line[0][fixed]}" if line else ""
            axes[0][column].set_title(f"{what}{held}")
        shown: Row = {}
        for panel in axes.flat:
            handles, labels = panel.get_legend_handles_labels()
            shown |= dict(zip(labels, handles, strict=True))
        figure.legend(shown.values(), shown.keys(), loc="lower center", ncols=4)
        figure.suptitle(machine(results), fontsize=8)
        figure.tight_layout(rect=(0, 0.08, 1, 1))
        for kind in ("png", "svg"):
            written.append(folder / f"{name}-{what.lower().replace(' ', '-')}.{kind}")
            # no date and no random ids: the same results give the same file
            figure.savefig(written[-1], dpi=120, metadata={"Date": None} if kind == "svg" else None)
        pyplot.close(figure)
    return written


def _points(results: Row) -> list[Row]:
    """Return benchmarks on a square mesh with square tiles, and the plain rows of their groups."""
    meshed = {
        record["group"]: record["extra_info"]["what"]
        for record in results["benchmarks"]
        if record.get("group") and _mesh(record)
    }
    points = []
    for record in results["benchmarks"]:
        facts = record["extra_info"]
        if record.get("group") in meshed and "tile" in facts:
            sides, tiles = ([int(size) for size in facts[name].split("x")] for name in ("mesh", "tile"))
            points.append({
                "what": meshed[record["group"]], "row": facts["exchange"], "side": sides[0], "tile": tiles[-1],
                "dtype": facts["dtype"], "ms": record["stats"]["median"] * 1e3,
                "ratio": ratio(results, record, "emulation"),
            })  # fmt: skip
    return points


def _mesh(record: Row) -> bool:
    return record["extra_info"].get("exchange") not in (None, *PLAIN) and "tile" in record["extra_info"]


def _line(points: list[Row], over: str, fixed: str) -> list[Row]:
    """Return points of the commonest dtype, at the value of `fixed` with the most different values of `over`."""
    if not points:
        return []
    dtype = Counter(point["dtype"] for point in points).most_common(1)[0][0]
    points = [point for point in points if point["dtype"] == dtype]
    spread = {
        held: len({point[over] for point in points if point[fixed] == held})
        for held in {point[fixed] for point in points}
    }
    best = max(spread, key=lambda held: (spread[held], held))
    return [point for point in points if point[fixed] == best]


def _draw(axes: Any, points: list[Row], over: str, key: str) -> None:
    """Draw a line for each row; a row of one or two points has markers alone."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    for row in dict.fromkeys(point["row"] for point in points):
        values = sorted(
            {(point[over], point[key]) for point in points if point["row"] == row and point[key] is not None}
        )
        if values:
            colour, marker = LOOKS[row]
            line = "-" if len(values) > 2 else ""
            axes.plot(*zip(*values, strict=True), ls=line, marker=marker, ms=5, color=colour, label=row)
    axes.set_xscale("log", base=2)
    sides = sorted({point[over] for point in points})
    axes.set_xticks(sides, [str(side) for side in sides])
    axes.xaxis.set_minor_locator(NullLocator())
    if any(point[key] is not None for point in points):
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        plain = FuncFormatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_major_formatter(plain)
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axes.yaxis.set_minor_formatter(plain if high < 100 * low else NullFormatter())
    axes.grid(alpha=0.3)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="a results file as a table, and as plots")
    parser.add_argument("results", type=Path)
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw into this folder as well")
    args = parser.parse_args(arguments)
    results = json.loads(args.results.read_text())
    whole_models = any("times_transformers" in record["extra_info"] for record in results["benchmarks"])
    print(model_table(results) if whole_models else table(results))
    if args.plots:
        for path in plots(results, args.plots, args.results.stem):
            print(path)


if __name__ == "__main__":
    main()
