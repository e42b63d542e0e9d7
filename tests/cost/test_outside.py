"""Prices by tuned constants equal the closed forms of HPDC'24 on the same rounds; two rules make all that differs."""

from math import ceil

import pytest

from wafer_triton.cost.calibrate.outside import Point, points

pytestmark = pytest.mark.slow


def by_rule(of: Point) -> float:
    """Return the closed form with the mean link of a star, and with whole words in the chunks of a ring."""
    p, words = of.cores, of.words
    if of.collective == "star":
        return max(words * (p - 1), words * p / 2 + p - 1) + 5
    if of.collective == "ring":
        return 2 * (p - 1) * ceil(words / p) + 4 * p - 6 + 5 * 2 * (p - 1)
    return of.closed


def test_prices_are_the_closed_forms_but_for_two_rules() -> None:
    every = list(points())
    assert len(every) == 116
    for point in every:
        assert point.tuned == pytest.approx(by_rule(point), rel=1e-12), point
        assert point.exact == (abs(by_rule(point) / point.closed - 1) < 1e-9), point
        assert point.written > point.tuned, point
