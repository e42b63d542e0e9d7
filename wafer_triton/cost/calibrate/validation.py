"""The page docs/validation.md: what was fitted, what was held out, and how far predictions are off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from wafer_triton.cost.bands import FOLDER, bands
from wafer_triton.cost.calibrate import FAMILIES, Measurement, outside, own, rows
from wafer_triton.cost.calibrate.cells import Cell, summaries
from wafer_triton.cost.calibrate.fit import STAGES, Stage, leave_one_out
from wafer_triton.cost.calibrate.paper import SIZES, Derived, over_rival
from wafer_triton.cost.constants import constants
from wafer_triton.device import device
from wafer_triton.text.progress import Progress, silent


@dataclass(frozen=True)
class Family:
    """The family of a stage of the fit, its rows with predictions; errors are predicted over measured, less 1."""

    stage: Stage
    rows: tuple[tuple[Measurement, float], ...]
    left_out: dict[str, list[float] | None]  # errors on groups that the constants were not fitted on

    @property
    def name(self) -> str:
        """The name of the family."""
        return self.stage.family

    @property
    def errors(self) -> list[float]:
        """Return the relative errors of all rows that the family's stage is fitted on: MeshGEMV from 80 x 80 on."""
        return [predicted / row.measured - 1 for row, predicted in self.rows if self.stage.takes(row)]


def families(progress: Progress = silent) -> list[Family]:
    """Return all families, predicted with the committed constants. Reports "families"."""
    predictions = []
    for number, stage in enumerate(STAGES, 1):
        c = constants(device(stage.device))
        predicted = tuple((row, row.predict(c)) for row in rows(stage.family))
        left_out: dict[str, list[float] | None] = {
            key: None if rest is None else [prediction / row.measured - 1 for row, prediction in rest]
            for key, rest in leave_one_out(stage, c).items()
        }
        predictions.append(Family(stage, predicted, left_out))
        progress("families", number, len(STAGES))
    return sorted(predictions, key=lambda family: list(FAMILIES).index(family.name))


def measured() -> list[Cell]:
    """Return the measurements of a WSE-3 as cells; those of a WSE-2 are cells of the paper's tables 3 and 4.

    A decode layer is one measurement: a constant is fitted on its total, and its communication does not depend on that.
    """
    found = []
    for stage in STAGES:
        if stage.device == "wse3":
            c, band = constants(device("wse3")), bands()[stage.family]["error_band"]
            for row in rows(stage.family):
                number, fitted = row.measured, stage.takes(row) and row.groups.get("quantity") != "communication"
                name = f"WSE-3: {stage.family.removeprefix('WSE-3 ')}"
                found.append(
                    Cell(
                        name, row.name, "", row.groups.get("mesh", ""), "", row.unit, f"{number:.1f}", number, number,
                        fitted, row.predict(c), band,
                    )
                )  # fmt: skip
    return found


TITLE = "# Predicted against measured"
PAGE = """
How far are predictions from silicon, on numbers that no constant was fitted on? `wafer-triton validate --out FILE.md`
writes this page; the last column of the first table names the command that prints the cells of a row. An error is
predicted over measured, less 1.

## Fitted and held out

The constants of the cost model are fitted on measurements of a WSE-3 (public result files of WaferLLM's kernels) and on
eight cells, of a WSE-2, of WaferLLM's paper (He et al., OSDI 2025), whose tables and text are those below. Numbers that
follow from others are not counted (see "Derived numbers"). {counted}

{top}

- **fitted**: a constant is fitted on it. **held out**: it is not; the errors are of these cells alone.
- **within the band**: the measurement lies in the error band that is printed with the prediction. The bands come from
  rows left out of the fit. A KV cache is counted, not timed: it has no band and may be off by 1 %.
- A speed-up that the text gives as a range, such as "2 to 3 times", is one cell. It is missed if it is missed at one of
  the sizes below.
- Commands are of `wafer-triton`, in the root of the repository, which has the files.

What is missed, and why:

- **Requests of Llama-3-8B with short answers** (table 2):
  {requests}.
  The likely cause is the prefill on 660 x 660, which table 3 lacks. It has the tiles of 600 x 600, 7 of the 4,096
  columns a core, in more rounds, so it is predicted to be slower. With the prefill of 720 x 720, 6 columns a core, the
  errors are {elsewhere}.
- **The KV cache of Llama-2-13B** (table 5): {cache}.
  The cause is not known: the same count gives the cache of 8B. It is {layers}, which the paper does not
  state.
- **MeshGEMM over Cannon**: published as 2 to 3 times as fast, predicted as
  {Cannon} times for {sizes} on 720 x 720.
  The likely cause is the overlap: here a shift over the whole row hides completely beside a product of tiles that are
  not small.
- **MeshGEMM over SUMMA**: published as 2 to 3 times as fast, predicted as {SUMMA} times for the same
  products. The likely cause is the routes: SUMMA is taken to need a route for each column, more than a core has, so
  that tiles are relayed core by core. The vendor's SUMMA changes a few routes between steps instead, at a cost that is
  published nowhere. On a device with enough routes (`wse2,routes=100000`) it is {free} times.

## What was not fitted

The errors of all held-out cells of a kind, and the worst of them. The last row is of the [tuned
end](#judged-by-another-groups-collectives) of a price, beside closed forms.

{five}

Tables 3 and 4 are predicted for models or meshes other than the fitted ones, table 2 with meshes for each phase that
tables 3 and 4 lack, and table 6 on a WSE-2 by constants of a WSE-3; its first cell was known when that was decided.
MeshGEMV on 16 x 16 was left out of the fit, as it runs through before all cores have started. A mesh is named by its
side, a request by the meshes of prefill and decode, a row of a WSE-3 by its mesh, tile and groups.

![Predicted against measured: cycles of a WSE-3, tokens per second of a WSE-2](pictures/validation.png)

## Judged by another group's collectives

What does a schedule of your own take? `price` names two ends: cycles as WaferLLM's kernels are written, by the
constants of this page, and cycles if it is tuned like the collectives of Luczynski et al. ("Near-Optimal Wafer-Scale
Reduce", HPDC'24, [arXiv 2404.15888](https://arxiv.org/abs/2404.15888)), by one cycle a word and a hop and
2 T_R + 1 = 5 a stage and a round. Nothing is claimed between the two, and the tuned end has no error band. That group's
closed forms of P cores and B words, within 4 % of a CS-2 by its own measurements, judge it; nothing is fitted on them.
A run is priced as their T = max(C, E / N + L) + (2 T_R + 1) D, so they judge how rounds are counted. {exact}

{collectives}

The others:

- **Star of one word**: E / N + L = B P / 2 + P - 1 is more than the contention C = B (P - 1), which the closed form
  takes alone. From 3 words on C is the larger, and the price exact. A miss: words that follow one another over each
  link need no more than P - 1 cycles.
- **Ring of fewer words than cores**: a chunk is B / P words in the closed form, a fraction, and one word here.

The last column is the price of the same rounds by the constants of WaferLLM's kernels, over the closed form: what an
all-reduce in many rounds can win by tuning. For products the tuned end takes the peak of the device, and vector
operations as free: there it bounds, and predicts nothing. The cycles of a multiply-add in fp32 (2.71, read from the
349.0 TFLOP/s of an SGEMM on a CS-2) are of the first end, and that product is no evidence for them.

Closed form in cycles, then the price where it differs:

{forms}

A stencil is no collective. These are cycles of an iteration of a 5-point stencil in fp32, as somebody's code takes them
in the vendor's fabric simulator of a WSE-2 ([Jorineg/cerebras](https://github.com/Jorineg/cerebras), results of
`r1-stencil` and `tiled-stencil`), not on silicon:

{stencils}

The first row is of code for one value a core, which multiplies and adds the words as they arrive; its 16 cycles lie
between the ends. All others are misses: this code takes 1.6 to 2.5 times the first end. Its vector operations take 1.2
cycles an element of a large tile; the rate of fp16, 0.34, and the SRAM, 0.5 in fp32, allow less. No measurement of
silicon has vector operations in fp32, so nothing follows from it here.

## Derived numbers

These numbers of the paper follow from others that it publishes, so they say nothing new about a prediction.

{derived}

`wafer-triton validate --table all` lists them. The power of a WSE-2, 15 kW, is itself read from these ratios: each fits
37.5 A100s of 400 W. So predicted joules are seconds times an assumed power, and no measurement confirms them. The
requests of table 2 are counted, but not independent of tables 3 and 4: they run the same prefill and decode on other
meshes, and re-place weights and cache in between; two answers to one prompt differ by decode alone.

## The fit

`wafer-triton validate --fit` fits the constants and prints every residual. The last column is of fits without a group
of rows, which then predict that group: without all rows of one mesh, of one tile, and so on.

{fit}

MeshGEMV is fitted on meshes of 80 x 80 and more. The 66 rows of MeshGEMM are of 11 tiles, so rows left out by tile say
more about new sizes than rows left out by mesh. Errors on each mesh, as mean / worst:

{meshes}

Other constants are taken over:
{carried}
Data sheets and a third party's characterisation of a WSE-3 give the rest; `wafer-triton devices wse2` lists each
constant with its source.

## What these measurements cannot say

- **No model's own decoder was measured.** The layers that the paper times have one head and keys and values of full
  width, without embedding and LM head. `estimate` prices a model's own program by the same constants, in a wider band.
- **Tables 2 to 4 are scaled.** Where the wafer holds a part of the layers, the authors time these and scale to all.
- **A decode layer of a WSE-3 was measured once, with the profiler's timers on.** `decode_work_cycles` is fitted on it
  and holds the timers: without it the layer would take {untimed} in place of {timed} cycles. So decode on a WSE-3 is
  predicted as too slow by an unknown part of that. The paper's runs on a WSE-2 are without timers.
- **The clock of the WSE-2 is 1.1 GHz in the paper; other work on the same machine says 0.85 GHz.** Its times are turned
  into cycles with 1.1 GHz. The cells do not tell which is right: fitted at 0.85 GHz, the errors of the eight are
  {slow_fit} (mean / worst) instead of {fit_error}, predicted tokens per second stay about the
  same, cycles fall by a quarter, and `decode_step_cycles` falls from {step} to {slow_step}. A GEMV alone rests on
  constants of a WSE-3 and would take {later} times as long: the errors of table 6 would be {slow_gemv}
  instead of {gemv}. That fit is printed by
  `wafer-triton validate wafer_triton/cost/calibrate/wse2_llm.csv --fit --device wse2,clock_hz=850000000`.
- **Two published numbers were known when a rule was chosen**: that a WSE-2 takes the routing stage of a WSE-3. They are
  the GEMV of 16,384 x 16,384 (table 6) and the vendor's pipeline (text).
- **The meshes of table 6 are not stated.** The fastest of 480, 600 and 720 is taken.
- No product alone was measured on a WSE-2 but these two GEMVs, no prefill on a WSE-3, and no rectangular mesh.

## The paper's cells

Published / predicted (error). An asterisk marks a fitted cell. All are of the paper's own program on a WSE-2.

{tables}
"""
IN_REPOSITORY = "wafer_triton/cost/calibrate"  # the folder of the measurements
KINDS = ("measured", "cells", "fitted", "held out", "within the band", "missed", "mean error", "worst error")
CELLS = ("quantity", "model or product", "mesh", "tokens", "published", "predicted", "error", "band", "verdict")
MARKS = {"fitted": " *", "within": "", "miss": ", missed"}


def markdown(
    of: Sequence[Family], cells: Sequence[Cell], derived: Sequence[Derived], points: Sequence[outside.Point]
) -> str:
    """Return the page: families of the fit, all cells of the paper, its derived numbers, and the closed forms."""
    every = [*measured(), *cells]
    top = [(*row, f"`{_printed(row[0])}`") for row in kind_rows(every)]
    missed = {name: [cell for cell in cells if cell.verdict == "miss" and cell.table == name] for name in ("2", "5")}
    text = {name: [cell for cell in cells if cell.what.endswith(name)] for name in ("Cannon", "SUMMA")}
    total = rows("WSE-3 decode layer")[0]
    c = constants(device("wse3"))
    slow = {each.family: own.refitted(each) for each in own.read(FOLDER / "wse2_llm.csv", device(SLOW))}
    step = slow["WSE-2 decode"]
    gemv = [cell.error for cell in cells if cell.table == "6"]
    later = device("wse2").clock_hz / device(SLOW).clock_hz
    body = PAGE.format(
        top=_marked((*KINDS, "printed by"), top),
        requests=_and(map(_both, missed["2"])),
        counted=counted(cells),
        elsewhere=_and(cell.note.rpartition(" by ")[2] for cell in missed["2"]),
        cache=_and(map(_both, missed["5"])),
        layers=missed["5"][0].note,
        sizes=_and(cell.model for cell in text["SUMMA"]),
        **{name: _and(f"{cell.predicted:.3g}" for cell in found) for name, found in text.items()},
        free=_and(f"{over_rival(size, 'SUMMA', ROUTES).predicted:.3g}" for size in SIZES),
        five=_marked(FIVE, [*_five(every), _judged(points)]),
        exact=outside.counted(points),
        collectives=_marked(outside.COLUMNS, outside.summary(points), 2),
        forms=_forms(points),
        stencils=_marked(outside.STENCIL_COLUMNS, outside.stencils()),
        derived=_marked(("numbers", "cells", "follow from", "largest difference"), _derived(derived)),
        fit=_marked(FIT, map(_fit, of), 3),
        meshes=_by_mesh(every),
        carried=_carried(),
        timed=_digits(total.predict(c)),
        untimed=_digits(total.predict(replace(c, decode_work_cycles=0.0))),
        fit_error=_spread([error for family in of if family.name in slow for error in family.errors]),
        slow_fit=_spread([error for each in slow.values() for error in each.errors_after]),
        step=_digits(step.before["decode_step_cycles"]),
        slow_step=_digits(step.after["decode_step_cycles"]),
        later=f"{later:.2f}",
        gemv=_and(map(_share, gemv)),
        slow_gemv=_and(_share((1 + error) * later - 1) for error in gemv),
        tables=_tables(cells),
    )
    return f"{TITLE}\n{body}"


def counted(cells: Sequence[Cell]) -> str:
    """Return the sentence on all cells of the paper."""
    kinds = summaries(cells)
    every, fitted, held_out, within, missed = (
        sum(getattr(kind, name) for kind in kinds) for name in ("cells", "fitted", "held_out", "within", "misses")
    )
    return (
        f"Of {every} independent cells of the paper {fitted} are fitted and {held_out} are held out: {within} of these "
        f"are within the band, {missed} are missed."
    )


def _printed(name: str) -> str:
    """Return the command that prints the cells of a row of the first table."""
    on, _, kind = name.partition(": ")
    if on == "WSE-3":
        return f"validate {IN_REPOSITORY}/wse3_{kind.lower().replace(' ', '_')}.csv"
    return f"validate --table {on.removeprefix('table ')}"


SLOW, ROUTES = "wse2,clock_hz=850000000", "wse2,routes=100000"
FIVE = ("not fitted", "cells", "mean error", "worst error", "worst cell", "measured", "predicted")
FIT = ("measurements", "rows", "constants fitted", "mean error", "worst error", "left out: mean / worst error")
HELD_OUT = {
    "WSE-2: prefill (table 3)": ("3",),
    "WSE-2: decode (table 4)": ("4",),
    "WSE-2: whole requests (table 2)": ("2",),
    "WSE-2: GEMV alone (table 6)": ("6",),
    "WSE-3: MeshGEMV on 16 x 16, communication of a decode layer": ("WSE-3: MeshGEMV", "WSE-3: decode layer"),
}
FOLLOW = {
    "5": ("table 5: caches by concatenation", "the cache by shift over the rows of the mesh, rounded down"),
    "6": ("table 6: energies", "time on GPUs x GPUs over the wafer's time x 37.5"),
    "7, 8": ("tables 7 and 8: energies", "the same of the speeds of tables 3 and 4"),
    "text": ("text: GEMV over one A100", "the times of table 6"),
}


def kind_rows(cells: Iterable[Cell]) -> list[tuple[str, ...]]:
    """Return the rows under `KINDS`, a table of cells each."""
    return [
        (
            kind.name, *map(str, (kind.cells, kind.fitted, kind.held_out, kind.within, kind.misses)),
            *("-" if error is None else f"{100 * error:,.1f} %" for error in (kind.mean_error, kind.worst_error)),
        )
        for kind in summaries(cells)
    ]  # fmt: skip


def row_of(cell: Cell) -> tuple[str, ...]:
    """Return the row under `CELLS` of a cell."""
    band = "-" if cell.band is None else f"{100 * cell.band:.0f} %"
    return (
        cell.what, cell.model, cell.mesh or "-", cell.tokens or "-", f"{_published(cell)} {cell.unit}",
        _digits(cell.predicted), _share(cell.error), band, cell.verdict,
    )  # fmt: skip


def _five(cells: Sequence[Cell]) -> Iterable[tuple[str, ...]]:
    for name, tables in HELD_OUT.items():
        held_out = [cell for cell in cells if cell.table in tables and not cell.fitted]
        worst = max(held_out, key=lambda cell: abs(cell.error))
        where = ", ".join(filter(None, (worst.model or worst.what, worst.model and worst.mesh)))
        where += f", {worst.tokens}" * (" in" in worst.tokens)
        both = f"{_published(worst)} {worst.unit}", _digits(worst.predicted)
        yield name, str(len(held_out)), *_mean_and_worst([cell.error for cell in held_out], 1), where, *both


def _judged(of: Sequence[outside.Point]) -> tuple[str, ...]:
    """Return the row under `FIVE` of the closed forms."""
    worst = max(of, key=lambda point: abs(point.ratio - 1))
    where = f"{worst.collective}, {worst.cores} cores, word of one"
    errors = _mean_and_worst([point.ratio - 1 for point in of], 1)
    closed = f"{_digits(worst.closed)} cycles, closed form"
    return "CS-2: closed forms of HPDC'24's collectives", str(len(of)), *errors, where, closed, _digits(worst.tuned)


def _forms(of: Sequence[outside.Point]) -> str:
    """Return the table of all points, a row for each collective on as many cores."""
    found: dict[tuple[str, str], list[str]] = {}
    for point in of:
        cell = _digits(point.closed) + f" / {_digits(point.tuned)}" * (not point.exact)
        found.setdefault((point.collective, str(point.cores)), []).append(cell)
    head = ("collective", "P", *(f"B = {words:,}" for words in outside.WORDS))
    return _marked(head, ((*key, *cells) for key, cells in found.items()))


def _derived(of: Sequence[Derived]) -> Iterable[tuple[str, ...]]:
    for table, (name, rule) in FOLLOW.items():
        numbers = [one for one in of if one.table == table]
        most = max(abs(one.value - one.published) for one in numbers)
        yield name, str(len(numbers)), rule, f"{most:.2g}"


def _fit(family: Family) -> tuple[str, ...]:
    names = ", ".join(f"`{name}`" for name in family.stage.names)
    left = "; ".join(f"{key}: {_spread(errors)}" for key, errors in family.left_out.items())
    return family.name, str(len(family.rows)), names, *_mean_and_worst(family.errors, 2), left


def _by_mesh(cells: Sequence[Cell]) -> str:
    """Return the errors on each mesh of the products that were measured on a WSE-3."""
    products = [cell for cell in cells if cell.table in ("WSE-3: MeshGEMM", "WSE-3: MeshGEMV")]
    errors: dict[str, dict[str, list[float]]] = {}
    for cell in products:
        errors.setdefault(cell.table, {}).setdefault(cell.mesh, []).append(cell.error)
    meshes = sorted({cell.mesh for cell in products}, key=int)
    lines = ((name, *(_spread(known.get(mesh)) for mesh in meshes)) for name, known in errors.items())
    return _marked(("mesh", *(f"{mesh} x {mesh}" for mesh in meshes)), lines)


def _carried() -> str:
    """Return the sentence on constants that a device takes over from the other."""
    names = {
        name: ", ".join(f"`{key}`" for stage in STAGES if stage.device == name for key in stage.hands_on)
        for name in ("wse3", "wse2")
    }
    return f"A WSE-2 has those of the fit on a WSE-3 for {names['wse3']}, a WSE-3 those of a WSE-2 for {names['wse2']}."


def _tables(cells: Sequence[Cell]) -> str:
    """Return tables 3, 4 and 2 with a row for each model, and rows of all other cells."""
    parts = []
    for table, title, column in (
        ("3", "prefill, tokens/s", "mesh"),
        ("4", "decode, tokens/s", "mesh"),
        ("2", "requests, output tokens/s", "tokens"),
    ):
        found: dict[str, dict[str, str]] = {}
        for cell in (cell for cell in cells if cell.table == table):
            both = f"{_published(cell)} / {_digits(cell.predicted)} ({_share(cell.error)}{MARKS[cell.verdict]})"
            name = f"{cell.model}, {cell.mesh}" if column == "tokens" else cell.model
            found.setdefault(name, {})[getattr(cell, column)] = both
        heads = next(iter(found.values()))
        parts.append(
            _marked((f"table {table}: {title}", *heads), ((name, *own.values()) for name, own in found.items()))
        )
    rest = [row_of(cell) for cell in cells if cell.table not in ("2", "3", "4")]
    parts.append(_marked((*CELLS[:3], *CELLS[4:]), ((*row[:3], *row[4:]) for row in rest), 2))
    return "\n\n".join(parts)


def _marked(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a table in markdown, whose first `left` columns are texts."""
    rule = ["---" if number < left else "---:" for number in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def _both(cell: Cell) -> str:
    """Return what is predicted and what was published."""
    return f"{_digits(cell.predicted)} {cell.unit} for {_published(cell)} ({_share(cell.error)})"


def _published(cell: Cell) -> str:
    return cell.published if "to" in cell.published else f"{float(cell.published):,}".removesuffix(".0")


def _and(texts: Iterable[str]) -> str:
    *most, last = texts
    return f"{', '.join(most)} and {last}" if most else last


def _digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def _share(error: float) -> str:
    """Return an error in percent or, of more than twice as much, as a factor."""
    if abs(error) <= 1:
        return f"{100 * error:+.1f} %"
    return f"{_digits(1 + error)} times"


def _spread(errors: list[float] | None) -> str:
    """Return the mean and the worst error; "-" without any."""
    return " / ".join(_mean_and_worst(errors, 2)) if errors else "-"


def _mean_and_worst(errors: Iterable[float], decimals: int) -> tuple[str, str]:
    sizes = [*map(abs, errors)]
    return f"{100 * fmean(sizes):.{decimals}f} %", f"{100 * max(sizes):.{decimals}f} %"
