"""A plan of the planner as `DieGroups`, which a `Trainer` runs with values on the same dies, by the same stream."""

from __future__ import annotations

from wafer_triton.errors import ConfigError
from wafer_triton.train.planner import TrainingPlan, demand
from wafer_triton.train.product import Team
from wafer_triton.train.shards import DieGroups


def executable(planned: TrainingPlan) -> DieGroups:
    """Return the `DieGroups` of a plan, on the planned wafer's dies, with its stream, moving operand and recompute.

    Raises HbmError for a plan that does not fit. Raises ConfigError for a plan that a `Trainer` cannot run: with tensor
    or context groups, with tuples or recompute that change between operators or layers, or with a stream that skips
    dies.
    """
    demand(planned)
    options = list(planned.operators.values())
    split, placed = options[0].split, options[0].placed
    alike = {(option.split.sizes, option.split.moving, option.placed) for option in options}
    if len(alike) > 1 or len(set(planned.recompute)) > 1 or planned.wafers > 1:
        raise ConfigError(
            f"{planned.strategy}: operators or layers differ, or wafers form a pipeline; no trainer runs that"
        )
    if split.tensor * split.context > 1:
        raise ConfigError(f"{planned.strategy}: {split}: a trainer has data parallel groups and streams alone")
    if split.stream > 1 and (placed.fixed or placed.strides[3] != (1, 1)):
        raise ConfigError(f"{planned.strategy}: {placed}: a trainer's streams run on neighbouring dies")
    (rows, cols), kind = placed.sides[3] if split.stream > 1 else (1, 1), placed.step(3).kind
    team = Team(planned.wafer.mesh(), kind if split.stream > 1 else "relay", rows, cols)
    samples = planned.work.batch // planned.micro_batches // split.data
    rows_by = "sample" if samples % split.stream == 0 else "sequence"
    return DieGroups(team, split.moving or "w", rows_by, planned.recompute[0], planned.micro_batches)
