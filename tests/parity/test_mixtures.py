"""Mixtures of experts against transformers, from folders of small random checkpoints in both layouts of weights."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from judge import Family, judge, near
from wafer_triton import ExpertRegions
from wafer_triton.emulate.torch import TorchExecutor
from wafer_triton.errors import CheckpointError
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.experts import WHOLE, by_expert

pytestmark = pytest.mark.slow

SIZES = {
    "hidden_size": 32, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 61, "max_position_embeddings": 64, "num_experts_per_tok": 2,
    "initializer_range": 0.2, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
}  # fmt: skip
PROMPT, STEPS = 9, 32
MARGIN = 1e-4  # of logits, below which rounding may decide


QWEN = {"num_experts": 6, "moe_intermediate_size": 12}
MIXTURES = [
    Family("mixtral", "mixtral", SIZES | {"num_local_experts": 5, "sliding_window": None}),
    Family("qwen3-mixed", "qwen3_moe", SIZES | QWEN | {"norm_topk_prob": True, "mlp_only_layers": [0], "head_dim": 10}),
    Family("qwen3-plain", "qwen3_moe", SIZES | QWEN | {"norm_topk_prob": False, "num_experts_per_tok": 3}),
    Family(
        "qwen2-shared", "qwen2_moe", SIZES | QWEN | {"shared_expert_intermediate_size": 30, "decoder_sparse_step": 2}
    ),
    Family("olmoe", "olmoe", SIZES | {"num_experts": 7, "clip_qkv": 1.5}),
]
mixtures = pytest.mark.parametrize("mixture", MIXTURES, ids=str)
SHARED = MIXTURES[3]


@torch.no_grad()
def judged(mixture: Family, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return transformers' logits after the prompt and each token, and its router's [sparse layers, tokens, E]."""
    out = judge(mixture)(torch.tensor([tokens]), output_router_logits=True)
    return out.logits[0, PROMPT - 1 :], torch.stack([logits for logits in out.router_logits if logits.numel()])


PROMPT_TOKENS = torch.randint(61, (PROMPT,), generator=torch.Generator().manual_seed(3)).tolist()


def wafer(folder: Path, mesh: str = "3x2", **options) -> WaferForCausalLM:
    return WaferForCausalLM.from_pretrained(folder, mesh=mesh, **({"max_length": PROMPT + STEPS} | options))


def run(decoder: WaferForCausalLM, steps: int) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Return tokens of a prompt and an answer, logits that chose each, and expert ids [layers, tokens, k] of all."""
    decoder.reset()
    tokens, logits = list(PROMPT_TOKENS), [decoder.prefill(PROMPT_TOKENS)]
    for _ in range(steps):
        tokens.append(int(logits[-1].argmax()))
        logits.append(decoder.step(tokens[-1]))
    return tokens, torch.stack(logits), torch.tensor(decoder.passes.trace())


@pytest.mark.parametrize(
    ("mixture", "where"), [*((mixture, "regions") for mixture in MIXTURES), (SHARED, "spread")], ids=str
)
def test_logits_tokens_and_expert_ids_equal_transformers(mixture, where, folders, roomy, record_property):
    decoder = wafer(folders(mixture), "2", device=roomy, experts=where)
    tokens, got, expert_ids = run(decoder, STEPS)
    wanted, router = judged(mixture, tokens)
    assert near(got, wanted)
    assert wanted[:-1].argmax(-1).tolist() == tokens[PROMPT:], "each token is the one that transformers would take"
    k = decoder.config.experts.top_k
    ranked = router.sort(-1, True)
    clear = ranked.values[..., k - 1] - ranked.values[..., k] > MARGIN
    record_property("share of tokens whose margin is too small to compare", 1 - clear.float().mean().item())
    assert clear.float().mean() > 0.99
    assert torch.equal(expert_ids[clear], ranked.indices[..., :k].sort(-1).values[clear])


@pytest.mark.slow
@pytest.mark.parametrize("mixture", [MIXTURES[1], SHARED], ids=str)
def test_chunks_meshes_head_groups_placements_batches_and_exchanges_agree(mixture, folders, roomy, monkeypatch):
    tokens, want, expert_ids = run(wafer(folders(mixture), "3", device=roomy), 3)
    torch.testing.assert_close(want, judged(mixture, tokens)[0], rtol=1e-4, atol=1e-4)
    elided = wafer(folders(mixture), "3", device=roomy, executor=TorchExecutor(exchange="elided"))
    assert torch.equal(run(elided, 3)[1], want)
    others = [wafer(folders(mixture), "1x4", device=roomy, head_groups=4, prefill_mesh="2")]
    for exchange in ("explicit", "elided"):  # three rows go to a region in a pass
        regions, executor = ExpertRegions(2, 3), TorchExecutor(exchange=exchange)
        others.append(wafer(folders(mixture), "2", device=roomy, prefill_mesh="4", experts=regions, executor=executor))
    in_chunks = [wafer(folders(mixture), "2", device=roomy, experts=where) for where in ("spread", ExpertRegions(2, 1))]
    for other in (*others, *in_chunks):
        if other is in_chunks[0]:  # of two tokens a row
            monkeypatch.setattr(type(other.placement), "chunk", lambda *_: 2)
        said, got, routed = run(other, 3)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert said == tokens and torch.equal(routed, expert_ids)
    monkeypatch.undo()
    batch = wafer(folders(mixture), "2", device=roomy, batch=3, experts="regions")
    for sequence in range(3):
        batch.prefill(tokens[: PROMPT - sequence], sequence=sequence)
    both = batch.advance([tokens[PROMPT], None, tokens[PROMPT - 2]])
    torch.testing.assert_close(both[0], want[1], rtol=1e-4, atol=1e-4)
    assert torch.stack(batch.passes.ran[-1].expert_ids).shape == (expert_ids.shape[0], 2, expert_ids.shape[2])


@pytest.mark.parametrize("mixture", [MIXTURES[0], SHARED], ids=str)
def test_both_layouts_of_weights_are_read_and_given_back(mixture, folders, tmp_path, roomy):
    """Compare a file's weights, an expert at a time, with transformers', all experts of a layer in one tensor."""
    own, stored = judge(mixture).state_dict(), load_file(folders(mixture) / "model.safetensors")
    assert any(name.rpartition(".")[2] in WHOLE for name in own) and own.keys() != stored.keys()
    decoder = wafer(folders(mixture), device=roomy)
    assert decoder.state_dict().keys() == stored.keys()
    assert all(torch.equal(weight, stored[name]) for name, weight in decoder.state_dict().items())
    assert len(by_expert(own, decoder.config)) == len(stored)
    decoder.load_state_dict({name: torch.zeros_like(weight) for name, weight in own.items()})
    decoder.load_state_dict(own)
    assert all(torch.equal(weight, stored[name]) for name, weight in decoder.state_dict().items())
    save_file({name: weight.contiguous() for name, weight in own.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folders(mixture) / "config.json").read_bytes())
    again = wafer(tmp_path, device=roomy)
    assert all(torch.equal(weight, stored[name]) for name, weight in again.state_dict().items())


@mixtures
def test_both_spellings_of_the_number_of_experts_are_one_config(mixture, folders, tmp_path):
    values = json.loads((folders(mixture) / "config.json").read_text())
    count = values.pop("num_experts", None) or values.pop("num_local_experts")
    configs = [DecoderConfig.from_dict(values | {key: count}) for key in ("num_experts", "num_local_experts")]
    assert configs[0] == configs[1] and configs[0].experts.count == count


def test_a_tensor_of_another_number_of_experts_is_named(folders):
    own = judge(SHARED).state_dict()
    own["model.layers.1.mlp.experts.down_proj"] = torch.zeros(5, 32, 12)
    with pytest.raises(CheckpointError, match=r"experts.down_proj has shape \(5, 32, 12\), not \(6, 32, 12\): all exp"):
        wafer(folders(SHARED)).load_state_dict(own)
