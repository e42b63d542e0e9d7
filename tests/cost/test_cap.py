"""MoE-CAP's measures: their identities, figures that follow from published configurations, and traces of expert ids."""

import json
from dataclasses import asdict, replace

import pytest

from wafer_triton import estimate
from wafer_triton.cost.cap import Pass, kv_bytes, measured, operations, peaks, weight_bytes
from wafer_triton.device import PRESETS
from wafer_triton.errors import ConfigError, ShapeError
from wafer_triton.shape.read import shape_of
from wafer_triton.shape.routing import drawn, read_trace, steps

OLMOE, DENSE = shape_of("olmoe-1b-7b"), shape_of("llama3.2-1b")
WSE2 = PRESETS["wse2"]


def of(shape, batch: int, tokens: int = 64, skew: float = 0.0):
    """Return the measures of decode steps of a millisecond."""
    each = steps(drawn(shape, tokens, skew), batch)
    return measured(shape, "fp16", WSE2, [Pass.decode([512] * batch, 1e-3, experts) for experts in each])


def test_of_a_dense_model_both_measures_are_one():
    cap = measured(DENSE, "fp16", WSE2, [Pass.decode([512], 1e-3), Pass.prefill(9, 2e-3)])
    assert (cap.s_mbu, cap.s_mfu) == (cap.mbu, cap.mfu) and cap.distinct_experts is None
    weights = DENSE.parameters - DENSE.hidden_size * (DENSE.vocab_size + 1)
    assert cap.activated_bytes == 2 * 2 * weights


@pytest.mark.slow
def test_one_token_takes_k_experts_and_all_tokens_all():
    one, every = of(OLMOE, 1), of(OLMOE, 64 * 64, 64 * 64)
    assert (one.distinct_experts, one.tokens_per_expert) == (8, 1) and one.s_mbu < one.mbu
    assert every.distinct_experts == 64 and every.s_mbu == every.mbu
    assert every.tokens_per_expert == 64 * 64 * 8 / 64


def test_bytes_in_use_grow_with_the_batch_and_operations_do_not_depend_on_routing():
    caps = [of(OLMOE, batch) for batch in (1, 2, 4, 8, 16, 32, 64)]
    used = [cap.activated_bytes / cap.passes for cap in caps]
    assert used == sorted(used) and len(set(used)) == len(used)
    each = [cap.s_mfu / cap.tokens_per_second for cap in caps]
    assert each == pytest.approx([each[0]] * len(each))
    skewed = of(OLMOE, 8, skew=2.0)
    assert skewed.distinct_experts < of(OLMOE, 8).distinct_experts and skewed.s_mfu == of(OLMOE, 8).s_mfu
    assert skewed.most_tokens_per_expert == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "gigabytes"),  # of weights but embedding and head, by the uniform formula E (1 - (1 - k/E)^T)
    [
        ("olmoe-1b-7b", (2.2, 9.0, 13.2, 13.4)),
        ("qwen1.5-moe-a2.7b", (4.1, 13.0, 24.6, 27.4)),
        ("mixtral-8x7b", (25.2, 83.9, 92.9, 92.9)),
        ("qwen3-30b-a3b", (5.4, 25.2, 52.4, 59.8)),
    ],
)
def test_weights_in_use_follow_uniform_routing(model, gigabytes):
    shape = shape_of(model)
    for batch, wanted in zip((1, 8, 32, 128), gigabytes, strict=True):
        each = steps(drawn(shape, 128), batch)
        mean = sum(weight_bytes(shape, "bf16", experts) for experts in each) / len(each)
        assert mean / 1e9 == pytest.approx(wanted, rel=0.02, abs=0.05)


def test_operations_count_active_weights_and_peaks_count_all_cores():
    # active: 3.04 G with the head of 151,936 x 2,048
    qwen = shape_of("qwen3-30b-a3b")
    assert operations(qwen, 1, 0) / 2 + qwen.vocab_size * qwen.hidden_size == pytest.approx(3.04e9, rel=0.002)
    assert operations(qwen, 1, 0, every=True) == pytest.approx(2 * (30.53e9 - 2 * 151936 * 2048), rel=0.002)
    assert 2 * qwen.matrices == operations(qwen, 1, 0, every=True)
    assert kv_bytes(qwen, "bf16", 1) == 96 * 1024
    bandwidth, rate = peaks(WSE2, "fp16")
    assert bandwidth == 745_500 * 24 * 1.1e9 and rate == 2 * 745_500 * WSE2.macs_per_cycle_fp16 * 1.1e9


def test_estimates_show_the_effect_of_routing(tmp_path):
    asked = {"model": replace(OLMOE, num_hidden_layers=2), "mesh": 160, "context": 64}
    uniform, skewed = (estimate.cap(**asked, batch=4, routing=routing) for routing in ("uniform", 2))
    assert uniform.seconds_per_pass == skewed.seconds_per_pass and uniform.s_mbu > skewed.s_mbu
    one = estimate.cap(**asked)
    assert one.seconds_per_pass == pytest.approx(estimate.decode(**asked).seconds)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"experts": drawn(asked["model"], 64, 2.0)}))
    traced = estimate.cap(**asked, batch=4, routing=path)
    assert asdict(traced) | {"routing": "2"} == asdict(skewed)
    assert estimate.cap(model=replace(DENSE, num_hidden_layers=1), mesh=160, context=64).routing is None
    with pytest.raises(ShapeError, match="routing 'zipf': give uniform, a skew such as 1.2, or a JSON file"):
        estimate.cap(**asked, routing="zipf")
    with pytest.raises(ShapeError, match="skew -1.0: give a number from 0"):
        estimate.cap(**asked, routing=-1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda trace: trace[1][3].__setitem__(2, 64), r"layer 1, token 3 names expert 64, but .* from 0 to 63"),
        (lambda trace: trace[0][0].pop(), "layer 0, token 0 takes .*, not 8 different experts"),
        (lambda trace: trace[1].pop(), "layer 1 has 4 tokens, layer 0 5; give as many"),
        (lambda trace: trace.pop(), "a trace of 1 layers, but olmoe-1b-7b has experts in 2"),
        (lambda trace: trace.clear(), "holds no trace; give "),
    ],
)
def test_a_faulty_trace_is_refused(change, message, tmp_path):
    shape = replace(OLMOE, num_hidden_layers=2)
    trace = drawn(shape, 5)
    change(trace)
    (tmp_path / "trace.json").write_text(json.dumps({"experts": trace}))
    with pytest.raises(ConfigError, match=message):
        read_trace(tmp_path / "trace.json", shape)


def test_a_short_trace_and_a_dense_model_are_refused():
    with pytest.raises(ShapeError, match="a trace of 5 tokens has no pass of 6; give a longer trace"):
        steps(drawn(OLMOE, 5), 6)
    with pytest.raises(ShapeError, match="llama3.2-1b has no experts, so that nothing is routed"):
        drawn(DENSE, 5)
    with pytest.raises(ShapeError, match="no forward pass to measure"):
        measured(OLMOE, "fp16", WSE2, [])


@pytest.mark.slow
def test_models_that_no_wafer_holds_are_refused_with_their_bytes():
    for device, held in (("wse2", "36,642,816,000"), ("wse3", "36,642,816,000")):
        with pytest.raises(Exception, match=f"weights take 61,064,245,248 B in fp16, and all cores .* hold {held} B"):
            estimate.cap(device=device, model="qwen3-30b-a3b", mesh=360, context=64)
