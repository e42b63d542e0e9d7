"""Sizes of serving: placements that hold a load, the best by prices, and errors where nothing fits."""

from dataclasses import replace

import pytest

from wafer_triton.device import device
from wafer_triton.errors import ConfigError, MeshError, SramError
from wafer_triton.place.regions import decode_regions
from wafer_triton.serve.load import Given, Load
from wafer_triton.serve.sizes import priced, rate
from wafer_triton.shape.read import shape_of

pytestmark = pytest.mark.slow

CHIP, SHAPE = device("wse2"), shape_of("smollm2-135m")
LOAD = Load(8, 400, 150, 60)
SMALL = Given("100", "100")


def test_with_split_phases_have_columns_of_their_own_and_keys_and_values_cross():
    split = priced("split", SHAPE, CHIP, LOAD, Given("100", "100", columns=600))
    assert split.switch() == 0 and split.right == 600 and split.held == float("inf")
    assert all(region.mesh.origin[1] + region.mesh.cols <= 600 for region in split.place.prefill_regions)
    assert all(region.mesh.origin[1] + region.mesh.cols <= 994 - 600 for region in split.place.regions)
    near = priced("split", SHAPE, CHIP, LOAD, Given("100", "100", columns=300))
    together = priced("shared", SHAPE, CHIP, LOAD, SMALL)
    assert split.hand_over(200) > near.hand_over(200) > together.hand_over(200)


def test_prompts_wait_in_the_regions_of_prefill_until_the_weights_move():
    times = priced("replace", SHAPE, CHIP, LOAD, Given("120", "100"))
    assert 400 <= times.held <= 8 * 150 and times.switch() > 0
    assert times.place.chunk(int(times.held)) == times.place.chunk_tokens


def test_the_most_caches_that_fit_are_taken_up_to_the_batch():
    small, shape = replace(CHIP, name="small", rows=100, cols=100), shape_of("smollm2-135m,layers=4")
    few = priced("shared", shape, small, Load(64, 2000, 500, 60), Given("50", "50"))
    assert 1 < few.block.batch < 64 and few.pool == few.block.batch * few.block.entries
    many = priced("shared", SHAPE, CHIP, LOAD, SMALL)
    assert many.block.batch == 8
    assert priced("shared", SHAPE, CHIP, LOAD, Given("100", "100", caches=2)).block.batch == 2
    assert decode_regions(few.block)


def test_without_a_given_mesh_the_one_of_the_highest_rate_is_taken():
    small = replace(CHIP, name="small", rows=150, cols=150)
    chosen = priced("shared", SHAPE, small, LOAD)
    for side in (50, 75):
        given = priced("shared", SHAPE, small, LOAD, Given(side, side))
        assert rate(chosen, LOAD) >= rate(given, LOAD), "a mesh that fills the device a whole number of times"


@pytest.mark.parametrize(
    "name, given, kind, said",
    [
        ("wafer", Given(), ConfigError, "policy 'wafer': choose one of split, replace, shared"),
        (
            "shared",
            Given("100", "120"),
            MeshError,
            "prefill on 100 and decode on 120: policy shared has one mesh; give",
        ),
        ("replace", Given(columns=9), MeshError, "columns = 9 of prefill: only policy split has columns of its own"),
        ("split", Given(columns=994), MeshError, "columns = 994 of prefill: wse2 has 994, and decode needs some of"),
        (
            "shared",
            Given("8", "8"),
            SramError,
            "no place was found for smollm2-135m on one mesh of wse2; of the nearest: ",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(name, given, kind, said):
    with pytest.raises(kind) as error:
        priced(name, SHAPE, CHIP, LOAD, given)
    assert said in str(error.value)
