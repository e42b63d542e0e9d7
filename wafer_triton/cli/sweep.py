"""`wafer-triton sweep`: estimates over a grid of parameters, as a table, CSV and picture. Every time is wafer time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wafer_triton.cli.answer import cut_short, tell
from wafer_triton.cli.app import is_reference, made
from wafer_triton.device import LAW
from wafer_triton.device import device as find_device
from wafer_triton.draw.figure import KINDS
from wafer_triton.errors import ConfigError, DrawError
from wafer_triton.text.quantity import ENDS, PREDICTED, numbered

if TYPE_CHECKING:
    from wafer_triton.compare.grid import Over, Row
    from wafer_triton.text.table import Table

MOST_SHOWN = 60  # rows of a table for people; more are in a CSV alone
# Columns of that table beside the parameters and `--show`, where an estimate has them.
TABLED = (
    "tokens_per_second", "user_tokens_per_second", "cycles", "tuned_cycles", "seconds", "joules_per_token", "regions",
    "sram_peak_bytes", "error_band",
)  # fmt: skip
PREFERRED = ("tokens_per_second", "shift_tokens")  # columns that are shown, before the first one of an estimate
MOST_REASONS = 5  # that are printed, the most frequent first
SHORT = 100  # points of a sweep that reports no progress


def _sweep(
    kind: str, /, *, over: Sequence[str] = (), set: Sequence[str] = (), device: str | None = None,
    show: str | None = None, out: Sequence[Path] = (), json: bool = False,
) -> int:  # fmt: skip
    from wafer_triton import draw
    from wafer_triton.compare import grid
    from wafer_triton.compare import sweep as sweeps
    from wafer_triton.draw.progress import Progress

    if not over:
        raise ConfigError(f"sweep {kind}: add --over NAME=A,B,..., such as device=wse2,wse3 or hop_cycles=0.5,1,2")
    swept = over_of(over)
    options = _settings(set, swept)
    if device is not None:
        if "device" in swept:
            raise ConfigError("--device beside --over device=...: give the devices once")
        options["device"] = find_device(device)
    run = kind_of(kind)
    sweeps.check_size(swept)
    rows: list[Row] = []
    interrupted = False
    try:
        with Progress(brief=len(grid.points(swept)) < SHORT) as progress:
            for row in sweeps.estimates(run, swept, progress, **options):
                rows.append(row)
    except KeyboardInterrupt:
        if not grid.feasible(rows):
            raise
        interrupted = True
    title = f"{kind} over {' and '.join(swept)}, {PREDICTED}" + f": {sweeps.asked(options)}" * bool(options)
    figures = grid.feasible(rows)[0]
    shown = show or next((name for name in PREFERRED if name in figures), list(figures)[len(swept)])
    _check_shown(rows, swept, shown)
    texts = [_table(rows, swept, shown, title), *_masked(rows)]
    if any("joules" in name for name in figures) and _changes_power(swept, options):
        texts.append(f"power follows {LAW}; give power_watts to change it")
    texts += [ENDS] if "tuned_cycles" in figures else []
    texts += [note] if (note := sweeps.unmoved(rows, swept)) else []
    names = []
    for file in out:
        if file.suffix.lower() in KINDS:
            try:
                draw.curves(rows, list(swept), shown, file, title=title)
            except DrawError as error:
                texts.append(f"no picture: {error}")
                continue
        else:
            grid.write_csv(rows, file)
        names.append(str(file))
    texts += [f"written: {name}" for name in names]
    code = tell(json, {"rows": rows, "files": names, "interrupted": interrupted}, *texts)
    return cut_short(f"after {len(rows)} of {len(grid.points(swept))} points") if interrupted else code


sweep = made(_sweep, written={"out": (".csv", *KINDS)})


def over_of(texts: Sequence[str]) -> Over:
    """Return the values of each swept parameter."""
    from wafer_triton.compare.grid import parsed

    over: dict[str, list[Any]] = {}
    for text in texts:
        name, values = parsed(text)
        if name in over:
            raise ConfigError(f"--over {text}: {name} is swept already; give its values once")
        over[name] = values
    if "device" in over:
        chips = over["device"] = [find_device(name) for name in over["device"]]
        if len({chip.name for chip in chips}) < len(set(chips)):
            raise ConfigError("--over device: two devices have one name; give one of them another `name` in its file")
    return over


def kind_of(name: str) -> str | Callable[..., Any]:
    """Return a kind of estimate by its name, or an estimate of a schedule of the user's own, given as a reference."""
    if not is_reference(name):
        return name
    from wafer_triton.cli.own import function_of
    from wafer_triton.compare.sweep import own

    called = function_of(name)

    def schedule(**arguments: Any) -> Any:
        return called(**arguments).schedule

    schedule.__signature__ = signature(called)  # type: ignore[attr-defined]
    return own(schedule)


def _settings(settings: Sequence[str], over: Over) -> dict[str, Any]:
    """Return the arguments of `--set`, which no parameter of the sweep may have."""
    from wafer_triton.compare.grid import plain

    options: dict[str, Any] = {}
    for text in settings:
        name, sign, value = text.partition("=")
        name = name.strip("-").replace("-", "_")
        if not sign or not name:
            raise ConfigError(f"--set {text!r}: write NAME=VALUE")
        if name in over:
            raise ConfigError(f"--set {text}: {name} takes its values from --over; leave it out of --set")
        if name == "device":
            raise ConfigError(f"--set {text}: use --device")
        if name in options:
            raise ConfigError(f"--set {text}: it is set already; give it once")
        options[name] = value if name == "model" else plain(value)
    return options


def _table(rows: list[Row], over: Over, shown: str, title: str) -> Table | str:
    """Return the table of the rows that have figures; if they are too many to read, a line that says how many."""
    from wafer_triton.compare.grid import feasible, size
    from wafer_triton.compare.sweep import LEGEND
    from wafer_triton.text.table import Table

    held = feasible(rows)
    if len(rows) > MOST_SHOWN:
        return f"{title}\n{size(over)}, {len(held):,} with figures; --out FILE.csv has them"
    columns = [name for name in dict.fromkeys((*over, shown, *TABLED)) if any(name in row for row in held)]
    said = [
        {name: LEGEND.asked(name, row[name]) if name in over else row.get(name) for name in columns} for row in held
    ]
    return Table(said, LEGEND, title=title)


def _masked(rows: list[Row]) -> list[str]:
    """Return the reasons of the rows without figures, the most frequent first, each with one of its points."""
    absent = [row for row in rows if "reason" in row]
    counts = Counter(row["reason"] for row in absent)
    texts = []
    for reason, count in counts.most_common(MOST_REASONS):
        example = next(row for row in absent if row["reason"] == reason)
        point = ", ".join(f"{name} {value}" for name, value in example.items() if name != "reason")
        more = f" and {numbered(count - 1, 'others')}" * (count > 1)
        texts.append(f"no figures at {point}{more}: {reason}")
    if len(counts) > MOST_REASONS:
        texts.append(f"no figures for {len(counts) - MOST_REASONS:,} other reasons, which a CSV has")
    return texts


def _check_shown(rows: list[Row], over: Over, shown: str) -> None:
    """Raise ConfigError for a column that no row has numbers in."""
    if not any(isinstance(row.get(shown), int | float) for row in rows):
        columns = ", ".join(name for name in max(rows, key=len) if name not in over)
        raise ConfigError(f"--show {shown}: there is no such column; columns: {columns}")


def _changes_power(over: Over, options: dict[str, Any]) -> bool:
    """Return whether a number that the power follows changes, and the power does not."""
    from wafer_triton.device.keys import KEYS

    numbers = {KEYS[name][0] for name in (*over, *options) if name in KEYS}
    return bool(numbers & {"rows", "cols", "clock_hz"}) and "power_watts" not in numbers
