"""The simulation against queueing theory, against stages event by event, and on random workloads."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from serving import Given
from wafer_triton.errors import ShapeError
from wafer_triton.serve.course import SAMPLES
from wafer_triton.serve.pipeline import period
from wafer_triton.serve.policies import ORGANISATIONS, Policy, Replacing, Shared, Split
from wafer_triton.serve.report import latency, weighted
from wafer_triton.serve.simulate import Simulation, simulate
from wafer_triton.serve.workload import Request, both, fixed, poisson, uniform
from wafer_triton.text.progress import silent

pytestmark = pytest.mark.slow


def test_waiting_times_of_one_server_equal_queueing_theory():
    """Check M/D/1: the mean wait is rho D / (2 (1 - rho)), for load rho and service time D (Pollaczek, Khinchine)."""
    load, count = 0.5, 20_000
    times = Given(batch=10**5, at_once=10**5, pool=10**9, step=1e-15, depth=1, fill=(1.0,), longest=8)
    # a prompt of a token takes 1.01 s in the one region of prefill
    requests = poisson(load / 1.01, count, both(fixed(1), fixed(1)), seed=5)
    run = simulate(requests, times, Policy(Split()))
    waits = [one.started - one.request.arrival for one in run.served]
    assert sum(waits) / count == pytest.approx(load * 1.01 / (2 * (1 - load)), rel=0.02)
    wait = 0.0
    for (one, other), found in zip(pairwise(requests), waits[1:], strict=True):  # Lindley's recursion
        wait = max(0.0, wait + 1.01 - (other.arrival - one.arrival))
        assert found == pytest.approx(wait, abs=1e-6)
    assert run.events <= 6 * count, "an event a token or a request would be more"


def staged(groups, turns):
    """Return seconds of a turn of groups with given times in each stage, simulated stage by stage."""
    free, ready = [0.0] * len(groups[0]), [0.0] * len(groups)
    marks = []
    for _ in range(turns):
        for number, group in enumerate(groups):
            at = ready[number]
            for stage, seconds in enumerate(group):
                at = free[stage] = max(at, free[stage]) + seconds
            ready[number] = at
        marks.append(ready[0])
    half = turns // 2
    return (marks[-1] - marks[half]) / (turns - 1 - half)


class Stages(Given):
    """Decode whose regions have different shares of the layers."""

    own, attentions = (1.0, 2.0, 1.5), (1, 2, 1)

    def of(self, count, attending):
        return [base * (1 + 0.5 * (count - 1)) + n * attending
                for base, n in zip(self.own, self.attentions, strict=True)]  # fmt: skip

    def attend(self, entries):
        return 0.125 * (entries - 1)

    def latency(self, count, attending):
        return sum(self.of(count, attending))

    def slowest(self, count, attending):
        return max(self.of(count, attending))


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [1, 2])
def test_equal_groups_have_the_period_of_the_formula(count, size):
    times = Stages()
    groups = [[3] * size] * count
    stages = [times.of(size, size * times.attend(3))] * count
    assert period(times, groups) == pytest.approx(staged(stages, 400), rel=1e-9)


def test_unequal_groups_take_at_most_the_period_of_the_formula():
    times, draw = Stages(), random.Random(1)
    for _ in range(40):
        groups = [[draw.randint(1, 9) for _ in range(draw.randint(1, 3))] for _ in range(draw.randint(1, 6))]
        stages = [times.of(len(group), sum(map(times.attend, group))) for group in groups]
        least, bound = staged(stages, 300), period(times, groups)
        assert least <= bound * (1 + 1e-9)
        alone = max(sum(stage) for stage in stages), max(map(sum, zip(*stages, strict=True)))
        assert max(alone) <= least * (1 + 1e-9), "no turn is shorter than its longest group, or its busiest region"


def policies(draw):
    name = draw.choice(sorted(ORGANISATIONS))
    how = Shared(draw.randint(1, 60), draw.randint(1, 9)) if name == "shared" else ORGANISATIONS[name]()
    chunk = draw.choice([None, 8, 32])
    return Policy(how, chunk)


def at_random(seed):
    """Return requests, times and a policy."""
    draw = random.Random(seed)
    rows = draw.choice([1, 3, 8])
    times = Given(
        batch=draw.randint(1, 7), at_once=draw.randint(1, 3), pool=draw.randint(40, 90), rows=rows, longest=40 * rows,
        extra=draw.choice([0, 0.1]), handing=draw.choice([0, 0.01]), moving=draw.random(),
        held=draw.choice([10**9, 60]),
    )  # fmt: skip
    lengths = both(uniform(1, 30 * rows), uniform(1, 14 * rows))
    count = draw.randint(1, 40)
    return poisson(draw.choice([0.02, 0.2, 5.0]), count, lengths, seed), times, policies(draw)


@pytest.mark.parametrize("seed", range(40))
def test_requests_and_tokens_are_conserved_in_causal_order_within_the_cache(seed):
    requests, times, policy = at_random(seed)
    run = simulate(requests, times, policy, record=True)
    assert len(run.served) == len(requests)
    for one in run.served:
        request = one.request
        if one.refused:
            assert request.input + request.output > times.longest and one.started is None
            continue
        assert one.tokens == request.output, "no token is missing, none comes twice"
        assert request.arrival <= one.started < one.first <= one.end <= run.end + 1e-9
        assert (one.first == one.end) == (request.output == 1)
    answers = [one.request.output for one in run.served if not one.refused]
    assert sum(count for _, count in run.gaps) == sum(answers) - len(answers)
    assert run.peak_entries <= times.pool
    assert all(0 <= sample.entries <= times.pool and sample.running <= times.batch for sample in run.samples)
    assert run.samples[-1].running == run.samples[-1].waiting == run.samples[-1].entries == 0
    check_actions(run, times, policy)
    again = simulate(requests, times, policy)
    assert [one.end for one in again.served] == [one.end for one in run.served]
    assert again.actions == []


def check_actions(run, times, policy):
    """Replay a record: every prompt is prefilled whole, no slot is taken twice, each token has a prefill or a step."""
    slots, held, prompt, made = {}, {}, {}, dict.fromkeys(range(len(run.served)), 0)
    for what, number, *about in run.actions:
        if what == "prefill":
            past, tokens = about
            assert past == prompt.get(number, 0) and (policy.chunk is None or tokens <= policy.chunk)
            prompt[number] = past + tokens
        elif what == "join":
            assert prompt.pop(number) == run.served[number].request.input + made[number]
            assert about[0] not in slots and about[0] < times.batch
            slots[about[0]], held[number] = number, about[0]
            made[number] += 1
        elif what == "steps":
            for each, count in number.items():
                assert count > 0 and each in held
                made[each] += count
        elif number in prompt:  # the last token is prefill's
            assert what == "end" and prompt.pop(number) == run.served[number].request.input + made[number]
            assert made[number] + 1 == run.served[number].request.output
        else:
            assert slots.pop(held.pop(number)) == number
            assert what == "preempt" or made[number] == run.served[number].request.output
    assert not held and not prompt
    preempted = sum(what == "preempt" for what, *_ in run.actions)
    assert preempted == sum(one.preempted for one in run.served)


def test_a_full_cache_preempts_the_sequence_that_arrived_last():
    times = Given(batch=4, pool=6, rows=4, longest=24, fill=(0.01,))
    requests = [Request(number, 0.0, 4, 12) for number in range(3)]
    run = simulate(requests, times, Policy(Split()))
    assert [one.preempted > 0 for one in run.served] == [False, True, True]  # the first alone takes 4 of 6 entries
    assert run.peak_entries == 6


@pytest.mark.parametrize("organisation", [Split(), Replacing(), Shared(20, 4)], ids=lambda each: each.name)
def test_halved_times_double_the_throughput(organisation):
    slow = Given(handing=0.5, extra=0.5)
    halves = {name: getattr(slow, name) / 2 for name in ("step", "extra", "moving", "handing")}
    fast = replace(slow, fill=tuple(each / 2 for each in slow.fill), **halves)
    requests = poisson(1.0, 60, both(uniform(1, 60), uniform(1, 30)), seed=3)
    early = [replace(request, arrival=request.arrival / 2) for request in requests]
    ends = [simulate(each, times, Policy(organisation)).served for each, times in ((requests, slow), (early, fast))]
    for one, other in zip(*ends, strict=True):
        assert other.end == pytest.approx(one.end / 2, rel=1e-12)


def test_chunks_of_a_prompt_pass_through_the_regions_side_by_side():
    whole, parts = (simulate([Request(0, 0.0, 100, 1)], Given(fill=(1.0, 1.0)), Policy(Split(), chunk=chunk)).end
                    for chunk in (None, 50))  # fmt: skip
    assert (whole, parts) == pytest.approx((2 * 2, 3 * 1.5))


@pytest.mark.parametrize("output", [1, 2, 5])
def test_prefill_makes_the_first_token_and_a_step_each_other(output):
    """Weights and caches move to decode for a second token alone; their return comes after all work."""
    times = Given(fill=(1.0,), handing=0.01, depth=1)
    run = simulate([Request(0, 0.0, 100, output)], times, Policy(Replacing()))
    (one,) = run.served
    moves = 2.0 + 100 * 0.01 if output > 1 else 0.0
    assert (one.first, one.end) == pytest.approx((2.0, 2.0 + moves + output - 1))
    assert run.busy["decode"] == pytest.approx(output - 1) and run.busy["re-placement"] == (2.0 if output > 1 else 0.0)
    assert sum(count for _, count in run.gaps) == pytest.approx(output - 1)
    assert sum(gap * count for gap, count in run.gaps) == pytest.approx(one.end - one.first)
    assert run.read == pytest.approx(sum(10 + 100.5 + step for step in range(output - 1)))


def test_all_answers_end_before_the_weights_return():
    requests = [Request(number, number * 0.5, 10, 20) for number in range(9)]
    run = simulate(requests, Given(), Policy(Replacing()), record=True)
    starts, ends = ([getattr(one, name) for one in run.served] for name in ("started", "end"))
    decoding = set()
    for what, number, *_ in run.actions:
        assert what != "prefill" or not decoding
        decoding = decoding | {number} if what == "join" else decoding - {number} if what == "end" else decoding
    assert run.busy["re-placement"] > 2 * 2.0 and min(ends) > max(starts[:4])


def test_answers_whose_last_tokens_come_in_one_turn_end_together():
    """The first to end makes room for a third prompt, for which decode pauses; the second has its token by then."""
    run = simulate([Request(number, 0.0, 10, 100) for number in range(3)], Given(batch=2), Policy(Shared(turns=64)))
    first, second, third = run.served
    assert first.end == second.end < third.started


def test_answers_end_together_where_turns_round():
    """Requests 3 and 6 end in one turn, which adds of floats tell apart by less than a billionth."""
    arrivals = *[0.0] * 4, 1.6724037529924543, 1.8080950187049964, 1.9545966151149639, 1.9863099193816602
    answers = 5, 5, 2, 5, 2, 2, 2, 5
    requests = [Request(n, at, 10, answers[n]) for n, at in enumerate(arrivals)]
    served = simulate(requests, Given(batch=2, extra=0.013), Policy(Shared(turns=1))).served
    assert served[3].end == pytest.approx(served[6].end)


@pytest.mark.parametrize("name", ORGANISATIONS)
def test_nothing_works_longer_than_the_run(name):
    requests = [Request(number, 0.0, 10, 2) for number in range(3)]
    run = simulate(requests, Given(step=0.01), Policy(ORGANISATIONS[name]()))
    last = max(one.end for one in run.served)
    assert run.end == last and run.samples[-1].time == last
    together = sum(run.busy.values()) if name != "split" else max(run.busy.values())
    assert together <= last * (1 + 1e-9)


class TokenByToken(Simulation):
    """A simulation with an event for each token, in `at` the times of those of each request."""

    def __init__(self, requests, times, policy):
        super().__init__(requests, times, policy, False, silent)
        self.at = {number: [] for number in range(len(requests))}

    def prefilled(self, number):
        if number is not None:
            self.at[number].append(self.clock)
        super().prefilled(number)

    def join(self, number):
        super().join(number)
        running = self.pipeline.running[number]
        for step in range(1, self.served[number].request.output):
            self.pipeline._add(running.start + step, -1, running)  # before all else of a moment

    def decoded(self, kind, running):
        if kind == -1:
            self.at[running.number].append(self.clock)
        else:
            super().decoded(kind, running)


@pytest.mark.parametrize("seed", range(60))
def test_gaps_are_those_between_tokens_event_by_event(seed):
    requests, times, policy = at_random(seed)
    run, stepped = simulate(requests, times, policy), TokenByToken(requests, times, policy)
    ends = [one.end for one in stepped.run().served]
    assert [one.end for one in run.served] == [end if end is None else pytest.approx(end) for end in ends]
    gaps = [later - one for tokens in stepped.at.values() for one, later in pairwise(tokens)]
    assert weighted(run.gaps) == pytest.approx(latency(gaps), rel=1e-6)


def test_a_prompt_enters_prefill_when_the_one_before_it_joins_decode():
    """Prefill holds tokens of one prompt, until they go to decode."""
    requests = [Request(number, 0.0, 50, 3) for number in range(2)]
    first, second = simulate(requests, Given(held=50), Policy(Split())).served
    assert second.started == first.first


def test_samples_are_few_and_in_order():
    run = simulate(poisson(5.0, 3000, both(fixed(4), fixed(4))), Given(step=0.01), Policy(Split()))
    times = [sample.time for sample in run.samples]
    assert SAMPLES / 4 < len(times) <= 2 * SAMPLES and all(one <= other for one, other in pairwise(times))
    last = run.samples[-1]
    assert last.read == pytest.approx(run.read) and last.tokens == 4 * 3000
    assert last.decode == pytest.approx(run.busy["decode"])
    waited = sum(one.started - one.request.arrival for one in run.served)
    assert last.sums[0] == pytest.approx(waited, abs=1e-6), "of all events, not of samples alone"


def test_progress_is_reported():
    reports = []
    simulate(
        poisson(1.0, 300, both(fixed(4), fixed(4))), Given(), Policy(), progress=lambda *report: reports.append(report)
    )
    assert reports[-1] == ("requests", 300, 300) and len(reports) == 100


def test_a_request_longer_than_the_cache_is_refused_with_its_tokens():
    run = simulate([Request(0, 0.0, 150, 60), Request(1, 0.0, 1, 1)], Given(), Policy())
    assert run.served[0].refused == "210 tokens are more than the 200 of the cache" and run.served[1].end


def test_no_requests_are_refused():
    with pytest.raises(ShapeError, match="no requests: there is nothing to serve; give one at least"):
        simulate([], Given(), Policy())
