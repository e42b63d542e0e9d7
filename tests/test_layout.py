import re
from math import ceil, prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wafer_triton.device.layout import axes, letters, scatter
from wafer_triton.device.mesh import Mesh
from wafer_triton.errors import ShapeError

sides = st.integers(1, 6)
lengths = st.integers(1, 9)
PATTERNS = {  # pattern: (sizes of the named axes, axes of each dimension)
    "(y m) (x k)": ({}, ("m", "k")),
    "(x n) (y k)": ({}, ("n", "k")),
    "(x n) (y k) -> k n": ({}, ("n", "k")),
    "(y k)": ({}, ("k",)),
    "(x k)": ({}, ("k",)),
    "m (y d)": ({}, ("m", "d")),
    "m (x d) -> d m": ({}, ("m", "d")),
    "": ({}, ()),
    "m n": ({}, ("m", "n")),
    "b (y m) (x n)": ({}, ("b", "m", "n")),
    "(h two x p) (y d) -> d (h two p)": ({"h": 3, "two": 2}, ("p", "d")),
    "(y d) (h two x p) -> (h two p) d": ({"h": 3, "two": 2}, ("d", "p")),
    "(h x p q) -> p h q": ({"h": 2, "q": 3}, ("p",)),
}
scattered = pytest.mark.parametrize("pattern", PATTERNS)


def numbered(shape: tuple[int, ...], dtype=torch.float32) -> torch.Tensor:
    return (torch.arange(prod(shape)) + 1).to(dtype).view(shape)


@scattered
@settings(max_examples=20)
@given(st.data())
def test_gather_undoes_scatter(pattern, data):
    sizes, dims = PATTERNS[pattern]
    named = prod(sizes.values())
    drawn = [data.draw(lengths, axis) for axis in dims]
    shape = tuple(length * (named if sizes and axis == "p" else 1) for length, axis in zip(drawn, dims, strict=True))
    mesh = Mesh(data.draw(sides), data.draw(sides))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.int64]))
    whole = (numbered(shape) % 127).to(dtype)
    cut = scatter(whole, mesh, pattern, **sizes)
    assert cut.tiles.shape[:2] == mesh.shape and cut.tiles.dtype == dtype and cut.tiles.is_contiguous()
    assert torch.equal(cut.gather(), whole)
    assert (cut.shape, cut.pattern, cut.mesh) == (shape, pattern, mesh)


@given(rows=sides, cols=sides, m=lengths, k=lengths)
def test_tiles_are_the_blocks_of_the_padded_matrix(rows, cols, m, k):
    whole, (tm, tk) = numbered((m, k)), (ceil(m / rows), ceil(k / cols))
    padded = torch.zeros(rows * tm, cols * tk)
    padded[:m, :k] = whole
    tiles = scatter(whole, Mesh(rows, cols), "(y m) (x k)").tiles
    assert tiles.shape == (rows, cols, tm, tk)
    for i in range(rows):
        for j in range(cols):
            assert torch.equal(tiles[i, j], padded[i * tm : (i + 1) * tm, j * tk : (j + 1) * tk])


@pytest.mark.parametrize(("pattern", "axis"), [("(y k)", 1), ("(x k)", 0), ("m (y d)", 1), ("m n", 0)])
def test_an_axis_outside_the_pattern_is_repeated(pattern, axis):
    shape = (7,) if pattern.count(" ") == 1 and "(" in pattern else (2, 7)
    tiles = scatter(numbered(shape), Mesh(3, 2), pattern).tiles
    assert torch.equal(tiles, tiles.narrow(axis, 0, 1).expand_as(tiles))


def test_heads_are_cut_inside_each_head():
    # 2 heads of 2 halves of 3 pairs on 2 columns: core 0 holds pairs 0, 1 of every half, core 1 pair 2 and padding
    whole = torch.arange(12.0).view(12, 1)
    tiles = scatter(whole, Mesh(1, 2), "(h two x p) (y d) -> d (h two p)", h=2, two=2).tiles
    assert tiles[0, 0].tolist() == [[0, 1, 3, 4, 6, 7, 9, 10]]
    assert tiles[0, 1].tolist() == [[2, 0, 5, 0, 8, 0, 11, 0]]


def test_views_and_slices_scatter_like_copies():
    whole = numbered((8, 6)).T[1:5, ::2]
    assert torch.equal(scatter(whole, Mesh(3, 2), "(y m) (x k)").gather(), whole)


@pytest.mark.parametrize(
    ("shape", "pattern", "sizes", "message"),
    [
        ((4,), "(y m) (x k)", {}, r"pattern '\(y m\) \(x k\)' has 2 dimensions, the tensor \[4\]"),
        ((4, 5, 6), "(y m) (x k)", {}, r"has 2 dimensions, the tensor \[4, 5, 6\]"),
        ((4, 5), "(m y) (x k)", {}, "after 'y' must stand the axis that it cuts"),
        ((4, 5), "y x", {}, "after 'y' must stand the axis that it cuts"),
        ((12, 5), "(h two x p) (y d)", {"h": 2}, "give the sizes of two"),
        ((12, 5), "(h two x p) (y d)", {}, "give the sizes of h, two"),
        ((10, 5), "(h two x p) (y d)", {"h": 2, "two": 2}, "a dimension of 10 is not made of 4s"),
        ((10, 5), "(h two) (y d)", {"h": 2, "two": 2}, "a dimension of 10 is not made of 4s"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_pattern_that_does_not_fit(shape, pattern, sizes, message):
    with pytest.raises(ShapeError, match=message):
        scatter(torch.zeros(shape), Mesh(2, 3), pattern, **sizes)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(y m) (y k)", "names an axis twice"),
        ("(y x) k", "y and x both cut one dimension; give each"),
        ("(y m) (x k) -> m q", "must order the tile's axes m, k"),
        ("(y m) 4", "'4' is no name of an axis; write letters, sizes by name"),
    ],
)
def test_a_pattern_that_makes_no_sense(pattern, message):
    with pytest.raises(ShapeError, match=message):
        scatter(torch.zeros(4, 4), Mesh(2, 2), pattern)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("(y m) (x k)", {"m": "y", "k": "x"}),
        ("(h two x p) (y d) -> d (h two p)", {"p": "x", "d": "y"}),
        ("m (y d)", {"d": "y"}),
        ("(x n)", {"n": "x"}),
    ],
)
def test_letters_are_the_axes_that_a_pattern_cuts(pattern, expected):
    assert letters(pattern) == expected


@pytest.mark.parametrize("pattern", ["(y m k)", "m y", "(y m) -> m"])
def test_a_dimension_without_one_axis_of_its_own_is_refused(pattern):
    assert axes("(y m) (x k)") == ["m", "k"]
    message = f"pattern {pattern!r}: each dimension must have one axis, as in '(y m) (x k)'"
    with pytest.raises(ShapeError, match=f"^{re.escape(message)}$"):
        axes(pattern)
