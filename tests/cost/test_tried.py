"""Experiments on missed cells: each begins at the predictions, and its page shows all of their numbers."""

import pytest

from wafer_triton import estimate
from wafer_triton.cost.calibrate import paper, tried

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def parts() -> list[paper.Parts]:
    return paper.parts()


def test_short_requests_as_stated_are_the_cells(parts: list[paper.Parts]) -> None:
    own = [cell.error for cell in paper.cells(("2",)) if cell.system == "WaferLLM" and "128 out" in cell.tokens]
    trials = tried.short_requests(parts)
    assert trials[tried.STATED] == pytest.approx(own)
    assert all(len(errors) == 4 for errors in trials.values())
    for name, errors in trials.items():
        if name.endswith("anew"):
            before = trials[name.partition(",")[0] if "table 3" not in name else name.rpartition(",")[0]]
            pairs = [(one, two) for one, two in zip(errors, before, strict=True) if one is not None and two is not None]
            assert pairs and all(one > two for one, two in pairs)  # a part that is left out takes time


def test_prefill_of_table_3_is_drawn_through_two_of_its_cells(
    parts: list[paper.Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = (one for one in parts if (one.model, one.input, one.output) == ("llama3-8b", 4096, 128))
    for side, rate in ((600, 25037.2), (720, 27686.5)):
        monkeypatch.setattr(tried, "_side", lambda _, side=side: side)
        assert tried._drawn(one) == pytest.approx(4096 / rate)


def test_differences_of_published_requests_add_up(parts: list[paper.Parts]) -> None:
    seconds = {(one.model, one.input, one.output): one.published_seconds for one in parts}
    for model, (first, second, prompt) in tried.by_itself(parts).items():
        for tokens, (published, predicted) in ((2048, first), (4096, second)):
            long, short = seconds[model, tokens, tokens], seconds[model, tokens, 128]
            assert short + (tokens - 128) * published == pytest.approx(long)
            assert predicted == pytest.approx(published, rel=0.05)
        assert prompt[0] > 0 and prompt[1] > 0


def test_caches_begin_at_the_count_and_end_at_the_paper() -> None:
    found = tried.caches()
    for model, side in tried.CACHES.items():
        counted = estimate.kv(model=model, mesh=side, program="paper-benchmark")
        assert found[tried.AS_COUNTED][model] == (counted.layers_per_region, counted.concat_tokens)
    assert [tokens for _, tokens in found[tried.AS_PUBLISHED].values()] == [382, 16]
    assert 0 <= tried.unused("llama3-8b") < 100 < 5_000 < tried.unused("llama2-13b") < 49_152
