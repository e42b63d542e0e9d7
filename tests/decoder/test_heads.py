"""`HeadGroups` puts every head and rotary pair on a column, padding last; MeshError says why a count does not fit."""

from collections.abc import Iterator

import numpy as np
import pytest

from wafer_triton.decoder.block import Block
from wafer_triton.decoder.heads import HeadGroups, distinct_head_groups, most_groups
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import MeshError, ShapeError
from wafer_triton.shape.decoder import DecoderShape
from wafer_triton.shape.read import shape_of


def shape(heads: int, kv_heads: int, head_dim: int = 10) -> DecoderShape:
    return DecoderShape(24, 40, 1, heads, kv_heads, head_dim, 0)


SHAPES = [(6, 2, 10), (4, 4, 6), (8, 1, 2), (12, 3, 16), (9, 3, 64), (7, 7, 8)]
each_shape = pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)


def every_number(heads: int, kv_heads: int, head_dim: int) -> Iterator[tuple[int, HeadGroups]]:
    """Yield columns and head groups on them, of every number."""
    for columns in (1, 5, 13, 40):
        for count in range(1, min(heads, columns) + 1):
            yield columns, HeadGroups(shape(heads, kv_heads, head_dim), columns, count)


@each_shape
def test_every_row_of_a_projection_lies_on_a_column_of_each_group_that_needs_it(heads, kv_heads, head_dim):
    for columns, groups in every_number(heads, kv_heads, head_dim):
        check_rows(groups, columns, heads, kv_heads, head_dim)


def check_rows(groups, columns, heads, kv_heads, head_dim):
    queries_per_kv_head = heads // kv_heads
    for projection, total in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        rows = groups.rows(projection)
        heads_of_a_core = groups.query_heads if projection == "q" else groups.kv_heads
        assert rows.shape == (columns, heads_of_a_core * groups.head_width)
        held, copies = np.unique(rows[rows >= 0], return_counts=True)
        assert held.tolist() == list(range(total * head_dim))
        # a query head lies in one group, a key-value head in every group that holds one of its query heads
        needed = groups.heads_of_group["q"] if projection == "q" else groups.heads_of_group["q"] // queries_per_kv_head
        needing = [(needed == head).any(1).sum() for head in range(total)]
        assert copies.tolist() == np.repeat(needing, head_dim).tolist()
        assert projection != "q" or set(copies) == {1}
    assert groups.count * groups.width <= columns
    assert (groups.pair_of[groups.count * groups.width :] == -1).all(), "columns left over are at the end"
    busy = (groups.pair_of >= 0).any(1)
    assert groups.busy_columns == busy.sum()


@each_shape
def test_a_query_lies_with_its_key_and_its_whole_pair(heads, kv_heads, head_dim):
    for columns, groups in every_number(heads, kv_heads, head_dim):
        check_pairs(groups, columns, heads // kv_heads, head_dim)


def check_pairs(groups, columns, queries_per_kv_head, head_dim):
    q, k = (
        groups.rows(projection).reshape(columns, -1, 2, groups.pairs)  # heads, halves of pairs, pairs
        for projection in "qk"
    )
    shared = groups.query_heads // groups.kv_heads
    for column, head, pair in np.argwhere(q[:, :, 0] >= 0).tolist():
        low, high = q[column, head, :, pair].tolist()
        assert high == low + head_dim // 2 and low % head_dim == groups.pair_of[column, pair]
        assert k[column, head // shared, 0, pair] == low // head_dim // queries_per_kv_head * head_dim + low % head_dim


@pytest.mark.parametrize(
    ("heads", "kv_heads", "count", "held"),
    [
        (6, 2, 1, (6, 2)), (6, 2, 2, (3, 1)), (6, 2, 3, (3, 1)), (6, 2, 4, (2, 1)), (6, 2, 5, (2, 1)),
        (6, 2, 6, (1, 1)), (32, 8, 3, (12, 3)), (32, 8, 8, (4, 1)), (32, 8, 15, (4, 1)), (32, 8, 16, (2, 1)),
        (64, 8, 24, (3, 1)), (40, 40, 7, (6, 6)),
    ],
)  # fmt: skip
def test_a_group_holds_as_few_heads_as_it_can(heads, kv_heads, count, held):
    groups = HeadGroups(shape(heads, kv_heads), 64, count)
    assert (groups.query_heads, groups.kv_heads) == held


def test_one_group_is_a_few_pairs_of_every_head_on_every_column():
    groups = HeadGroups(shape(4, 2, 12), 3)
    assert groups.pair_of.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert groups.rows("k").tolist()[1] == [2, 3, 8, 9, 14, 15, 20, 21]


def test_distinct_keeps_the_most_groups_for_each_tile_size():
    llama = shape_of("llama3-8b")
    kinds = distinct_head_groups(llama, 720)
    tiles = [(kind.query_heads, kind.kv_heads, kind.pairs) for kind in kinds]
    assert len(set(tiles)) == len(tiles) < 12
    assert {kind.count for kind in kinds} >= {11, 22, 32}
    for kind in kinds:
        more = (HeadGroups(llama, 720, count) for count in range(kind.count + 1, most_groups(llama, 720) + 1))
        assert all((other.query_heads, other.kv_heads, other.pairs) != tiles[kinds.index(kind)] for other in more)


@pytest.mark.parametrize("count", [2.0, True, "2"])
def test_a_count_that_is_no_whole_number_is_refused(count):
    with pytest.raises((MeshError, ShapeError), match="head_groups = "):
        Block(shape(4, 2), Mesh(3, 6), head_groups=count)


@pytest.mark.parametrize("count", [0, -1, 5])
def test_a_count_that_does_not_fit_is_refused_with_the_range_that_does(count):
    with pytest.raises(MeshError, match="head_groups = .*, but 4 query heads on 6 columns take a .* 1 to 4"):
        Block(shape(4, 2), Mesh(3, 6), head_groups=count)
    with pytest.raises(MeshError, match="4 query heads on 1 column takes 1"):
        Block(shape(4, 2), Mesh(3, 1), head_groups=3)
    with pytest.raises(MeshError, match="4 query heads on 2 columns take a whole number from 1 to 2"):
        Block(shape(4, 2), Mesh(3, 2), head_groups=3)


def test_a_program_without_rotary_embedding_has_one_head_group():
    with pytest.raises(MeshError, match="head_groups = 2, but a program without RoPE has one; leave it out"):
        Block(shape_of("llama3-8b").paper_benchmark(), Mesh(8, 8), head_groups=2)
