"""A tiny model serves requests with values; each answer has the tokens of its request served alone."""

import random

import pytest

from tiny import CONFIG, MIXTURE
from wafer_triton.errors import ShapeError
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.models.serve import serve
from wafer_triton.serve.policies import Policy, Replacing, Shared, Split
from wafer_triton.serve.workload import Request

pytestmark = pytest.mark.slow

COUNT, LONGEST, SIDE = 12, 16, 2
DRAW = random.Random(4)
PROMPTS = [[DRAW.randrange(256) for _ in range(DRAW.randint(1, 11))] for _ in range(COUNT)]
REQUESTS = [Request(number, number * 4e-6, len(prompt), DRAW.randint(1, 4)) for number, prompt in enumerate(PROMPTS)]


def model(config, batch, **more):
    return WaferForCausalLM.from_config(
        config, mesh=SIDE, max_length=LONGEST, max_prompt=8, batch=batch, seed=7, emulate_on="cpu", **more
    )  # fmt: skip


@pytest.fixture(scope="module")
def dense():
    return both_of(CONFIG | {"num_hidden_layers": 1})


@pytest.fixture(scope="module")
def mixture():
    return both_of(MIXTURE | {"num_hidden_layers": 1, "mlp_only_layers": []})


def both_of(config):
    """Return a model with four slots, and the answer of each prompt alone on a model with one."""
    one = model(config, 1)
    alone = [list(one.generate(prompt, asked.output)) for prompt, asked in zip(PROMPTS, REQUESTS, strict=True)]
    assert len(set(map(tuple, alone))) > COUNT / 2, "answers differ from each other"
    return model(config, 4), alone


FULL = Policy(Shared(20, 2), chunk=6), 8


@pytest.mark.parametrize(
    "name, policy, pool",
    [("dense", *FULL), ("mixture", *FULL), ("dense", Policy(Replacing()), None)],
    ids=["dense", "mixture", "re-placed"],
)
def test_answers_under_continuous_batching_equal_answers_of_single_requests(name, policy, pool, request):
    own, alone = request.getfixturevalue(name)
    answers, run = serve(own, PROMPTS, REQUESTS, policy, pool=pool)
    assert answers == alone
    together = max(sample.running for sample in run.samples)
    assert together >= 2, "sequences decode together"
    if pool is not None:
        assert sum(one.preempted for one in run.served) > 0 and run.peak_entries == pool
    if policy.chunk is not None:
        assert any(what == "prefill" and about[1] > 0 for what, *about in run.actions), "a prompt goes in chunks"


@pytest.mark.parametrize(
    "requests, pool, said",
    [
        (REQUESTS[:-1], None, "12 prompts of "),
        (REQUESTS, 0, "pool = 0 entries a row: the caches of the model hold 32; give 1 to them"),
        ([*REQUESTS[:-1], Request(11, 1.0, len(PROMPTS[-1]), 99)], None, "request 11 is refused: "),
    ],
)
def test_requests_that_do_not_match_their_prompts_are_refused(dense, requests, pool, said):
    with pytest.raises(ShapeError) as error:
        serve(dense[0], PROMPTS, requests, Policy(Split() if pool else Replacing()), pool=pool)
    assert said in str(error.value)
