"""`wafer-triton estimate --explain`, and the line of bounds under every estimate."""

import re

import pytest

from commands import answer
from wafer_triton.compare.sweep import LEGEND

SHAPE = "--model dim=64,ffn=128,heads=4,layers=2"
MODEL = f"{SHAPE} --mesh 8"
LINES = {
    "product": "product --device wse3 --mesh 8 --m 64 --k 64 --n 64 --algorithm mesh --dtype fp16",
    "vector": "product --mesh 8x6 --k 64 --n 64 --algorithm ktree --groups 4",
    "decode": f"decode {MODEL} --context 64",
    "prefill": f"prefill {MODEL} --tokens 64",
    "request": f"request {SHAPE} --prefill-mesh 8 --decode-mesh 8 --input 64 --output 8",
    "measures": f"decode {MODEL} --context 64 --routing uniform",
    "batch": f"decode {MODEL} --context 64 --batch 4",
    "cache": f"decode {MODEL}",
}


KEYS = {  # figures that an answer has, and whose labels its table has
    "product": "cycles compute_cycles communication_cycles rounds hops routes sram_peak_bytes seconds",
    "decode": "cycles_per_layer tokens_per_second communication_cycles_per_layer",
    "prefill": "tokens_per_second cycles_per_layer",
    "request": "tokens_per_second prefill_seconds decode_seconds",
    "cache": "concat_tokens shift_tokens",
}


@pytest.mark.parametrize("kind", sorted(LINES))
def test_every_estimate_has_its_figures_and_a_line_of_its_bounds(capsys, kind):
    found, text = answer(f"estimate {LINES[kind]}", capsys)
    keys = KEYS.get(kind, KEYS["product"] if kind == "vector" else "").split()
    assert "predicted on the wafer" in text and found.keys() >= set(keys)
    assert all(LEGEND.label(key) in text for key in keys)
    assert sum(found["bounds"]["shares"].values()) == pytest.approx(1)
    if kind == "cache":
        assert "\nbound by the SRAM of a core: " in text
    else:
        assert "\nbound by " in text


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["product", "decode"])
def test_an_explanation_is_text_and_json(capsys, kind):
    found, text = answer(f"estimate {LINES[kind]} --explain", capsys)
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert found["effects"]["clock_hz"]["doubled"] == pytest.approx(2)
    assert re.search(r"\nclock_hz +x 0.5 +x 2\n", text)
