"""Generation: sampling, batches of unequal prompts, stops, interrupts, and errors."""

import json
import warnings
from collections import Counter

import pytest
import torch

from tiny import BIASED, drawn
from wafer_triton.errors import CacheError, ShapeError
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.generate import Sampling

pytestmark = pytest.mark.slow

PROMPTS = [[3, 4, 5, 6, 7, 8, 9], [1], [30, 2, 2]]


def decoder(**options) -> WaferForCausalLM:
    return WaferForCausalLM.from_weights(BIASED, drawn(BIASED, 0.3), mesh="2x3", **({"max_length": 24} | options))


@pytest.fixture(scope="module")
def single():
    return decoder()


@pytest.fixture(scope="module")
def batched():
    return decoder(batch=3)


# --- batches ---


@pytest.mark.parametrize("how", [{}, {"temperature": 1.5, "seed": 3}], ids=["greedy", "sampled"])
def test_a_batch_is_its_prompts_one_by_one(single, batched, how):
    stream = batched.generate(PROMPTS, 8, **how)
    steps = list(stream)
    one_by_one = [
        list(single.generate(prompt, 8, **how | ({"seed": how["seed"] + number} if how else {})))
        for number, prompt in enumerate(PROMPTS)
    ]
    assert stream.tokens == one_by_one
    assert [list(column) for column in zip(*steps, strict=True)] == one_by_one
    assert batched.counts == [len(prompt) + 7 for prompt in PROMPTS]


def test_a_batch_smaller_than_the_placement(single, batched):
    stream = batched.generate(PROMPTS[:2], 5)
    assert [len(step) for step in stream] == [2] * 5
    assert stream.tokens == [list(single.generate(prompt, 5)) for prompt in PROMPTS[:2]]
    assert list(batched.generate(PROMPTS[2], 5)) == list(single.generate(PROMPTS[2], 5))


def test_sequences_of_a_batch_end_on_their_own(single, batched):
    free = [list(single.generate(prompt, 8)) for prompt in PROMPTS]
    stop = next(token for token in free[1] if token not in free[0])
    stream = batched.generate(PROMPTS, 8, stop=[stop])
    steps = list(stream)
    wanted = [tokens[: tokens.index(stop)] if stop in tokens else tokens for tokens in free]
    assert stream.tokens == wanted and len(wanted[1]) < len(wanted[0]) == 8
    ended = len(wanted[1])
    assert [step[1] for step in steps] == wanted[1] + [None] * (8 - ended)


def test_logits_of_a_batch_equal_its_sequences_one_by_one(single, batched):
    batched.reset()
    last = [batched.prefill(prompt, sequence=number) for number, prompt in enumerate(PROMPTS)]
    tokens = [5, None, 7]
    got = batched.advance(tokens)
    for number in (0, 2):
        single.reset()
        torch.testing.assert_close(single.prefill(PROMPTS[number]), last[number], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(single.step(tokens[number]), got[number], rtol=1e-4, atol=1e-4)
    assert batched.counts == [8, 1, 4], "the second rests"


# --- choosing ---


def test_a_seed_reproduces_and_another_does_not(single):
    first, again, other = (list(single.generate([3, 4], 16, temperature=2.0, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_a_temperature_near_zero_is_greedy(single):
    assert list(single.generate([3, 4], 8, temperature=1e-4, seed=1)) == list(single.generate([3, 4], 8))


LOGITS = torch.tensor([0.4, 0.1, 0.3, 0.2]).log()


def draws(sampling: Sampling) -> Counter:
    source = sampling.generator(0)
    return Counter(sampling.choose(LOGITS, source) for _ in range(600))


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({}, {0, 1, 2, 3}), ({"top_k": 1}, {0}), ({"top_k": 2}, {0, 2}), ({"top_k": 99}, {0, 1, 2, 3}),
        ({"top_p": 0.3}, {0}), ({"top_p": 0.5}, {0, 2}), ({"top_p": 0.75}, {0, 2, 3}), ({"top_p": 1.0}, {0, 1, 2, 3}),
        ({"top_k": 3, "top_p": 0.6}, {0, 2}),
    ],
    ids=str,
)  # fmt: skip
def test_top_k_and_top_p_keep_the_likeliest(how, kept):
    assert set(draws(Sampling(temperature=1.0, seed=0, **how))) == kept


def test_the_coldest_draw_is_the_likeliest():
    assert set(draws(Sampling(temperature=1e-45, seed=0))) == {0}


def test_draws_follow_the_probabilities():
    # 0.4 of 600 has a standard deviation of 12
    assert abs(draws(Sampling(temperature=1.0, seed=0))[0] - 240) < 60
    assert draws(Sampling(temperature=0.25, seed=0))[0] > 350, "colder is more certain: 0.4^4 of the sum is 0.72"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"temperature": -1.0}, "temperature = -1.0 must be 0"), ({"temperature": float("nan")}, "temperature = nan"),
        ({"top_k": 0}, "top_k = 0 must be at least 1"), ({"top_p": 0.0}, "top_p = 0.0 must be above 0"),
        ({"top_p": 1.5}, "top_p = 1.5 must be above 0 and at most 1"),
        ({"temperature": "warm"}, "temperature = 'warm' must be a number"),
        ({"top_k": 1.5}, "top_k = 1.5 must be a whole number"), ({"seed": 1.5}, "seed = 1.5 must be a whole number"),
        ({"top_k": 3}, "top_k = 3: at temperature 0 the likeliest token is taken; give a temperature above 0"),
        ({"top_p": 0.5}, "top_p = 0.5: at temperature 0 the likeliest token is taken"),
    ],
)  # fmt: skip
def test_sampling_that_makes_no_sense(single, how, message):
    with pytest.raises(ShapeError, match=message):
        single.generate([1], 1, **how)


# --- ends ---


def test_stop_tokens_and_lengths(single):
    free = list(single.generate([3, 4], 10))
    assert list(single.generate([3, 4], 10, stop=[free[4]])) == free[: free.index(free[4])]
    assert list(single.generate([3, 4], 0)) == []
    assert len(list(single.generate([3, 4], 23))) == 23, "the last token is not cached"
    with pytest.raises(CacheError, match="25 tokens do not fit the KV cache of max_length = 24"):
        single.generate([3, 4], 24)
    with pytest.raises(ShapeError, match="max_new_tokens = -1 must be a whole number, 0"):
        single.generate([3, 4], -1)
    with pytest.raises(ShapeError, match="token 10000 is outside the vocabulary of"):
        single.generate([3, 10_000], 1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'do_sample'"):
        single.generate([1], 2, do_sample=True)
    with pytest.raises(ShapeError, match="max_new_tokens = 1.5 must be a whole number, 0"):
        single.generate([3, 4], 1.5)


@pytest.mark.parametrize("other", ["generate", "forward", "step", "reset"])
def test_a_stream_ends_when_the_model_does_something_else(single, other):
    stream = single.generate([3, 4, 5], 4)
    first = next(stream)
    {
        "generate": lambda: list(single.generate([6, 7], 2)),
        "forward": lambda: single(torch.tensor([[6, 7]])),
        "step": lambda: single.step(6),
        "reset": single.reset,
    }[other]()
    with pytest.raises(CacheError, match="the model did something else since this stream's last token"):
        next(stream)
    assert stream.tokens == [first]


def test_a_prompt_that_breaks_off_is_run_again(single, monkeypatch):
    wanted = list(single.generate([3, 4], 3))
    stream, head = single.generate([3, 4], 3), single.head.run

    def interrupted(x):
        monkeypatch.setattr(single.head, "run", head)
        raise KeyboardInterrupt

    monkeypatch.setattr(single.head, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert list(stream) == wanted


def test_steps_after_forward_begin_with_an_empty_cache():
    model = decoder()
    model(torch.tensor([[5, 6, 7, 8, 9, 10, 11]]))
    logits = torch.stack([model.step(token) for token in (1, 2, 3)])
    model.reset()
    assert torch.equal(logits, torch.stack([model.step(token) for token in (1, 2, 3)]))


@pytest.mark.parametrize(
    "use, message",
    [
        (lambda model: model.prefill("abc"), "tokens of type str: give a list"),
        (
            lambda model: model.prefill([2, 1.5]),
            r"tokens\[1\] = 1.5 is of type float; give a token id, a whole number$",
        ),
        (lambda model: model.prefill([1], sequence=1), "sequence 1: the model is placed for 1, numbered from 0"),
        (lambda model: model.prefill([1], sequence=-1), "sequence -1: the model is placed for 1"),
        (lambda model: model.step(3.7), "token = 3.7 is of type float; give a token id, a whole number"),
        (lambda model: model.advance([0.5]), r"tokens\[0\] = 0.5 is of type float; give a token id"),
        (lambda model: model.embed([1, 2.0]), r"tokens\[1\] = 2.0 is of type float; give a token id"),
        (lambda model: model.generate([1], 2, stop=[1.0]), r"stop\[0\] = 1.0 is of type float; give a token id"),
        (lambda model: model(torch.tensor([[1.7]])), "input_ids of torch.float32 must be a tensor of token ids"),
        (lambda model: model.generate([1], 2, stop=5), "stop of type int: give a list of token ids"),
    ],
)
def test_values_that_are_no_tokens_are_refused(single, use, message):
    single.reset()
    with pytest.raises(ShapeError, match=message):
        use(single)
    assert len(single.prefill([1, 2])) == 31, "and the model goes on"
    single.reset()


def test_an_interrupt_keeps_the_generated_tokens(monkeypatch):
    model = decoder()
    free = list(model.generate([3, 4], 6))
    run, calls = type(model.layers).run, []

    def breaks(self, *args):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return run(self, *args)

    monkeypatch.setattr(type(model.layers), "run", breaks)
    stream = model.generate([3, 4], 6)
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    assert stream.tokens == free[:4]
    with pytest.raises(CacheError, match=r"broke off half-way, so the cache is not whole; call reset\(\)"):
        model.step(1)
    with pytest.raises(CacheError, match=r"was cut off in the middle of a step; call reset\(\)"):
        model.prefill([1], sequence=0)
    assert list(model.generate([3, 4], 6)) == free


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "the prompt is empty"), ([[]], "the prompt is empty"), ([[1], []], r"the prompt is empty.* \(prompt 1\)"),
        ([[1]] * 4, "4 prompts, but the model is placed for 3 at once; give batch=4"),
        ([[1], [1] * 30], "31 tokens do not fit the KV cache"),
    ],
    ids=["none", "one-empty", "second-empty", "too-many", "too-long"],
)  # fmt: skip
def test_batches_that_are_refused(batched, prompts, message):
    with pytest.raises((ShapeError, CacheError), match=message):
        batched.generate(prompts, 2)


def test_prompts_may_be_tensors(single):
    wanted = list(single.generate([3, 4], 4))
    assert list(single.generate(torch.tensor([3, 4]), 4)) == wanted
    assert list(single.generate(torch.tensor([[3, 4]]), 4)) == [[token] for token in wanted]
    assert list(single.generate(torch.tensor([3, 4]).numpy(), 4)) == wanted


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("text", "prompts of type str: give a list of token ids; text goes through the tokenizer first"),
        (["text"], r"prompts\[0\] = 'text' is of type str; give a token id, a whole number; text goes through"),
        ([1, 1.5], r"prompts\[1\] = 1.5 is of type float; give a token id, a whole number$"),
        ([[1], [2, "a"]], r"prompts\[1\]\[1\] = 'a' is of type str"),
        (None, "prompts of type NoneType: give a list of token ids"),
        pytest.param((token for token in [1, 0.5]), r"prompts\[1\] = 0.5 is of type float", id="generator"),
        (torch.tensor([1.5]), r"prompts\[0\] = 1.5 is of type float"),
    ],
    ids=str,
)
def test_a_value_that_is_no_prompt_is_refused(single, prompt, said):
    with pytest.raises(ShapeError, match=said):
        single.generate(prompt, 2)


@pytest.mark.parametrize("tokens", [[1], [None] * 3], ids=["too-few", "all-rest"])
def test_a_step_needs_a_token_for_each_sequence(batched, tokens):
    with pytest.raises(ShapeError, match="tokens for 3 sequences"):
        batched.advance(tokens)


@pytest.mark.parametrize("name", ["max_length", "max_prompt", "batch"])
def test_sizes_must_be_positive(name):
    with pytest.raises(ShapeError, match=f"{name} = 0 must be a whole number of at least 1"):
        decoder(**{name: 0})


# --- settings beside the model ---

GREEDY = [12, 8, 16, 16, 16, 22]  # transformers' tokens after 16; 22 ends a text
SETTINGS = [
    *({key: 50.0} for key in ("repetition_penalty", "encoder_repetition_penalty")),
    *({key: 1.0} for key in ("repetition_penalty", "encoder_repetition_penalty", "guidance_scale", "num_beams")),
    *({key: 1} for key in ("no_repeat_ngram_size", "encoder_no_repeat_ngram_size")),
    *({key: 0} for key in ("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length", "min_new_tokens")),
    *({key: 9} for key in ("min_length", "min_new_tokens")),
    *({key: None} for key in ("bad_words_ids", "sequence_bias", "suppress_tokens", "forced_bos_token_id")),
    {"suppress_tokens": [8]}, {"suppress_tokens": []}, {"begin_suppress_tokens": [12]}, {"begin_suppress_tokens": []},
    {"forced_bos_token_id": 0}, {"forced_eos_token_id": 0}, {"sequence_bias": [[[8], -99.0]]}, {"max_time": 0.0},
    {"exponential_decay_length_penalty": [0, 30.0]}, {"watermarking_config": {"bias": 99.0}}, {"use_cache": False},
    {"do_sample": False, "temperature": 0.2, "top_k": 3, "top_p": 0.5, "min_p": 0.2, "typical_p": 0.5},
    {"cache_implementation": "static", "max_length": 3, "length_penalty": 2.0, "early_stopping": True},
    {"bad_words_ids": [[8]], "no_repeat_ngram_size": 0, "suppress_tokens": [8], "temperature": 0.1},
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.filterwarnings("ignore")
def test_settings_that_change_the_tokens_of_transformers_are_named(settings, tmp_path):
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**sizes, vocab_size=31, max_position_embeddings=64, initializer_range=1.0)
    model, prompt = transformers.LlamaForCausalLM(config).eval(), torch.tensor([[16]])

    def tokens(**given):
        model.generation_config = transformers.GenerationConfig(eos_token_id=22, **given)
        found = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False)
        return found[0, 1:].tolist()

    assert tokens() == GREEDY
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DecoderConfig.from_folder(tmp_path)
    said = " ".join(str(warning.message) for warning in caught)
    for key, value in settings.items():
        assert (key in said) == (tokens(**{key: value}) != GREEDY), key
    assert len(caught) <= 1
