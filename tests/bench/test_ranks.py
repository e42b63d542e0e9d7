"""The benchmark over ranks runs, and each of its rows names its case."""

import pytest

import ranked

pytestmark = pytest.mark.slow


def test_cases_on_two_ranks():
    (rows, table), (others, _) = ranked.on_ranks(2, ranked.benched)
    assert [(row.what, row.scaling, row.exchange) for row in rows] == [
        (row.what, row.scaling, row.exchange) for row in others
    ]
    assert {row.scaling for row in rows} == {"strong", "weak"} and {row.ranks for row in rows} == {2}
    assert {row.exchange for row in rows} == {"explicit", "elided"}
    assert all(row.ratio > 0 and row.one_ms > 0 and row.ranks_ms > 0 for row in rows)
    crossed = {(row.what, row.exchange): row.rank_bytes for row in rows if row.scaling == "strong"}
    assert 0 < crossed["MeshGEMM 4x4", "elided"] < crossed["MeshGEMM 4x4", "explicit"]
    assert len(table.splitlines()) == len(rows) + 2 and table.count("x | activations |") == 3  # of models
