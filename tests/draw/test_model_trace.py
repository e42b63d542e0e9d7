"""Traces of whole requests: their durations add up to the price, phase by phase and region by region."""

import json
import re
from functools import partial
from pathlib import Path

import pytest

import wafer_triton
from traces import FIELDS, read
from wafer_triton import draw, estimate
from wafer_triton.cost.constants import constants
from wafer_triton.cost.layers import decode_block
from wafer_triton.device import device
from wafer_triton.device.mesh import Mesh
from wafer_triton.draw.figure import numbers_of
from wafer_triton.draw.model_trace import MOST_EVENTS
from wafer_triton.draw.times import HAND_OVER, Timeline, of_token
from wafer_triton.draw.times import request as timed
from wafer_triton.errors import DrawError, ShapeError
from wafer_triton.place.regions import decode_regions
from wafer_triton.shape.read import shape_of

pytestmark = pytest.mark.slow

LLAMA = {"model": "llama3-8b", "prefill_mesh": 660, "decode_mesh": 360}
REQUESTS = {
    "as in the paper": LLAMA | {"input": 2048, "output": 128, "program": "paper-benchmark"},
    "a long answer": LLAMA | {"decode_mesh": 660, "input": 4096, "output": 4096, "as_if": True},
    "tied, in chunks": {"model": "smollm2-135m", "prefill_mesh": 40, "decode_mesh": 40, "input": 700, "output": 90},
    "a mixture": {"model": "olmoe-1b-7b", "prefill_mesh": 200, "decode_mesh": 200, "input": 64, "output": 9},
}


def trace(line, path):
    draw.perfetto(line, path)
    return json.loads(path.read_text())


@pytest.fixture(scope="module", params=REQUESTS)
def request_of(request):
    sizes = {"as_if": True} | REQUESTS[request.param]
    return estimate.request(**sizes), timed(**sizes), sizes


def lasting(slices):
    return sum(end - start for start, end, _ in slices) / 1000  # cycles


def test_a_request_adds_up_to_its_price(request_of, tmp_path):
    predicted, line, sizes = request_of
    whole = trace(line, tmp_path / "request.json")
    hertz, tracks = device("wse2").clock_hz, read(whole["traceEvents"])["request"]
    seconds = (predicted.prefill_seconds, predicted.replacement_seconds, predicted.decode_seconds)
    near = partial(pytest.approx, rel=1e-9, abs=1e-3 * len(whole["traceEvents"]))
    assert [name for _, _, name in tracks["phases"]] == ["prefill", "re-placement", "decode"]
    assert [end - start for start, end, _ in tracks["phases"]] == near([1000 * hertz * each for each in seconds])
    assert lasting(tracks["transfers"]) == near(hertz * seconds[1])
    assert lasting(tracks["tokens"]) == near(hertz * seconds[2])
    assert whole["otherData"]["processes"]["request"]["cycles"] == pytest.approx(hertz * predicted.seconds, rel=1e-9)
    runs = [event["args"]["runs"] for event in whole["traceEvents"] if event.get("cat") == "tokens"]
    assert sum(runs) == sizes["output"]


def test_the_blocks_of_a_phase_add_up_to_it(request_of, tmp_path):
    whole = trace(request_of[1], tmp_path / "request.json")
    places = read(whole["traceEvents"])
    phases = {name: (start, end) for start, end, name in places["request"]["phases"]}
    tokens = [(start, end) for start, end, name in places["request"]["tokens"] if name.startswith("token ")]
    blocks = [each for name in places if name != "request" for each in places[name].get("blocks", [])]
    for start, end in (phases["prefill"], *tokens):
        own = [each for each in blocks if start <= each[0] < end]
        assert sum(end - start for start, end, _ in own) == pytest.approx(end - start, abs=len(own))
    steps = [each for name in places if name != "request" for each in places[name].get("steps", [])]
    first = [each for each in blocks if tokens[0][0] <= each[0] < tokens[0][1] and each[2] != HAND_OVER]
    shown = [each for each in steps if tokens[0][0] <= each[0] < tokens[0][1]]
    assert sum(end - start for start, end, _ in shown) == pytest.approx(
        sum(end - start for start, end, _ in first), abs=len(shown)
    )


def test_a_request_obeys_the_format_with_few_events(request_of, tmp_path):
    events = trace(request_of[1], tmp_path / "request.json")["traceEvents"]
    assert 100 < len(events) < MOST_EVENTS == 100_000
    for event in events:
        fields = FIELDS[event["ph"]]
        assert event.keys() == fields.keys() | {"ph"}
        assert all(isinstance(event[name], kind) for name, kind in fields.items())
    slices = [event["args"] for event in events if event["ph"] == "X"]
    assert all(
        {"cores", "runs", "hops", "bytes over links", "cycles", "cycles of set-up"} <= args.keys() for args in slices
    )


def test_every_slice_names_source_lines_within_the_lines_of_its_parent(request_of, tmp_path):
    lines = {}
    for event in trace(request_of[1], tmp_path / "request.json")["traceEvents"]:
        if event["ph"] == "X":
            lines.setdefault(event["cat"], set()).update(event["args"]["source"].split(", "))
    assert all(re.fullmatch(r"(schedule|place)/\w+\.py:\d+", source) for of in lines.values() for source in of)
    handed = {source for source in lines["blocks"] if source.startswith("place/hand_over.py")}
    assert lines["steps"] <= lines["blocks"] - handed <= lines["tokens"] | lines["phases"]
    assert lines["transfers"] <= lines["phases"]


def test_a_slice_has_the_cores_that_run_its_rounds(request_of, tmp_path):
    line = request_of[1]
    whole = {name: region.mesh.cores for name, region in line.regions.items()}
    for span in line.spans:
        if span.track in ("blocks", "steps") and span.name != HAND_OVER:
            assert span.origin.cores == whole[span.place]
    tokens = {span.origin.cores for span in line.spans if span.track == "tokens"}
    decoding = [cores for name, cores in whole.items() if not name.startswith("prefill")]
    assert tokens == {sum(decoding)} and all(span.origin.cores > 0 for span in line.spans)


def test_a_step_names_the_line_that_adds_it(tmp_path):
    line = timed(**LLAMA | {"input": 64, "output": 2, "program": "paper-benchmark"})
    events = trace(line, tmp_path / "request.json")["traceEvents"]
    sources = {event["args"]["source"] for event in events if event.get("cat") == "steps" and event["name"] == "silu"}
    assert {source.partition(":")[0] for source in sources} == {"schedule/prefill.py", "schedule/decode.py"}
    for path, _, number in (source.rpartition(":") for source in sources):
        text = (Path(wafer_triton.__file__).parent / path).read_text().splitlines()[int(number) - 1]
        assert 'label="silu"' in text


def test_every_block_of_a_model_is_in_the_region_that_holds_it(tmp_path):
    mesh, shape = Mesh(180, 180), shape_of("llama3-8b")
    c = constants(mesh.device)
    block = decode_block(shape, mesh, 512, c)
    regions = decode_regions(block)
    places = read(trace(of_token(regions, block, 512), tmp_path / "token.json")["traceEvents"])
    for number, region in enumerate(regions):
        named = [name for _, _, name in places[f"region {number}"]["blocks"] if name != HAND_OVER]
        assert tuple(named) == region.blocks
    predicted = estimate.decode(model="llama3-8b", mesh=180, context=512)
    every = [each for name in places if name != "request" for each in places[name]["blocks"]]
    assert lasting(every) == pytest.approx(device("wse2").clock_hz * predicted.seconds, rel=1e-6)
    held = [name for name in places if any(each[2] == HAND_OVER for each in places[name].get("blocks", []))]
    assert len(held) == len(regions) - 1


def test_a_trace_of_too_many_events_is_refused(tmp_path, monkeypatch):
    line = timed(**LLAMA | {"input": 64, "output": 2, "program": "paper-benchmark"})
    monkeypatch.setattr("wafer_triton.draw.model_trace.MOST_EVENTS", 50)
    with pytest.raises(DrawError, match="events is more than the 50 that viewers take; give a smaller number"):
        draw.perfetto(line, tmp_path / "request.json")
    assert list(tmp_path.iterdir()) == []


def test_a_timeline_in_blocks_without_a_token_is_refused():
    with pytest.raises(ShapeError, match="most = 0 must be a whole number of at least 1"):
        timed(**LLAMA | {"input": 64, "output": 2, "most": 0})


@pytest.mark.parametrize("model, side", [("llama3-8b", 180), ("smollm2-135m", 64)])
def test_a_picture_of_a_token_shows_its_cycles(model, side, tmp_path):
    block = decode_block(shape_of(model), Mesh(side, side), 512, constants(device("wse2")))
    regions = decode_regions(block)
    draw.token(of_token(regions, block, 512), tmp_path / "token.png", "a token")
    shown = {name: cycles for name, (cycles,) in numbers_of(tmp_path / "token.png").items()}
    predicted = estimate.decode(model=model, mesh=side, context=512)
    assert shown["embedding"] == pytest.approx(predicted.embedding_cycles)
    assert shown["head"] == pytest.approx(predicted.head_cycles)
    assert shown["attention"] + shown["ffn"] == pytest.approx(predicted.layers * predicted.cycles_per_layer)
    steps = {name.removeprefix("layer 0: "): cycles for name, cycles in shown.items() if name.startswith("layer 0")}
    assert steps == pytest.approx(predicted.steps, abs=1e-3)


def test_a_timeline_without_a_token_has_no_picture(tmp_path):
    with pytest.raises(DrawError, match="a timeline without a token: there is nothing to draw"):
        draw.token(Timeline({}), tmp_path / "token.png")
