"""The simulation: events of arrivals, prefill and decode, in the order of their times; same input, same result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any

import numpy as np

from wafer_triton.errors import ShapeError
from wafer_triton.serve.actions import Actions
from wafer_triton.serve.cache import Cache
from wafer_triton.serve.course import Run, Samples, Served, State
from wafer_triton.serve.pipeline import END, Pipeline, Running, Times
from wafer_triton.serve.policies import Policy, View
from wafer_triton.serve.workload import Request, check_requests
from wafer_triton.text.progress import Progress, silent

REPORTS = 100  # of progress in a run


def simulate(
    requests: Sequence[Request], times: Times, policy: Policy, *, record: bool = False, progress: Progress = silent
) -> Run:  # fmt: skip
    """Return the course of serving requests.

    Raises ShapeError without requests, and for times that are priced for another organisation.
    """
    check_requests("simulate: requests", requests)
    of, name = getattr(times, "organisation", ""), policy.organisation.name
    if of not in ("", name):
        raise ShapeError(f"simulate: times are priced for policy {of!r}, not for {name!r}; give priced({name!r}, ...)")
    return Simulation(requests, times, policy, record, progress).run()


def arrival(request: Request) -> tuple[float, int]:
    """Return the key by which waiting requests are ordered: the first to come is the least."""
    return request.arrival, request.number


class Simulation:
    """The state of a simulation, and a method for each kind of event."""

    def __init__(
        self, requests: Sequence[Request], times: Times, policy: Policy, record: bool, progress: Progress
    ) -> None:  # fmt: skip
        if not requests:
            raise ShapeError("no requests: there is nothing to serve; give one at least")
        self.times, self.policy, self.progress = times, policy, progress
        self.organisation = policy.organisation
        self.pipeline = Pipeline(times)
        self.clock, self.count_events, self.longest_queue = 0.0, 0, 0
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.serial = count()  # of events, which come in this order at one moment
        self.waiting: list[tuple[tuple[float, int], int]] = []
        self.open: tuple[int, int] | None = None  # a prompt of which chunks are to come, and its tokens so far
        self.free = [0.0] * len(times.stages(1, 0, True))  # when each region of prefill is
        self.ready: list[int] = []
        self.cache = Cache(times.pool)
        self.parked = 0  # tokens of prompts that were begun and are not in decode
        self.to_prefill, self.moving = True, False
        self.view = View()
        self.due = 0.0  # the turn from which on decode may pause for prefill
        self.busy = {"prefill": 0.0, "re-placement": 0.0}
        self.samples = Samples()
        self.actions = Actions(self.pipeline, record)
        self.served: list[Served] = []
        self.over, self.made = 0, 0  # requests that are over, tokens of the sequences that left decode
        for number, request in enumerate(requests):
            self.served.append(Served(request))
            self.push(request.arrival, self.arrived, number)

    def push(self, at: float, event: Callable[..., None], *about: Any) -> None:
        """Let an event come at a time."""
        heappush(self.events, (at, next(self.serial), event, about))

    def arrived(self, number: int) -> None:
        """Queue a request, or refuse one that no empty cache holds."""
        one, times = self.served[number], self.times
        tokens = one.request.input + one.request.output
        most = min(times.longest, times.pool * times.rows)
        if tokens > most:
            one.refused = f"{tokens:,} tokens are more than the {most:,} of the cache"
            self.finish()
        else:
            self.queue(number)

    def queue(self, number: int) -> None:
        """Let a request wait."""
        heappush(self.waiting, (arrival(self.served[number].request), number))
        self.longest_queue = max(self.longest_queue, len(self.waiting))

    def finish(self) -> None:
        """Count a request that is over."""
        self.over += 1
        total = len(self.served)
        if self.over * REPORTS // total != (self.over - 1) * REPORTS // total:
            self.progress("requests", self.over, total)

    def need(self, number: int) -> int:
        """Return the cache entries in each row that must be free for a request to begin."""
        return -(-(self.served[number].length + 1) // self.times.rows)

    def startable(self) -> bool:
        """Return whether a prompt or a next chunk could begin, if the first region of prefill were free."""
        if self.open is not None:
            return True
        if not self.waiting or len(self.cache.held) >= self.times.batch:
            return False
        number = self.waiting[0][1]
        parked = self.parked + self.served[number].length
        return self.cache.fits(self.need(number)) and (parked <= self.times.held or not self.parked)

    def start(self) -> None:
        """Let the next chunk enter prefill."""
        number, past = self.open or (heappop(self.waiting)[1], 0)
        one = self.served[number]
        if self.open is None:
            self.cache.hold(number, self.need(number))
            self.parked += one.length
            one.started = self.clock if one.started is None else one.started
        left = one.length - past
        tokens = left if self.policy.chunk is None else min(left, self.policy.chunk)
        at = self.clock
        for region, seconds in enumerate(self.times.stages(tokens, past, tokens == left)):
            at = self.free[region] = max(at, self.free[region]) + seconds
        self.open = (number, past + tokens) if tokens < left else None
        self.view.prefilling += 1
        self.view.visited += tokens
        self.push(self.free[0], self.entered)
        self.push(at, self.prefilled, number if tokens == left else None)
        self.actions.note("prefill", number, past, tokens)

    def entered(self) -> None:
        """Let the first region of prefill be free, for `act` to begin the next chunk."""

    def prefilled(self, number: int | None) -> None:
        """End a chunk, and with the last one (a `number`) note the token of prefill's head, maybe the answer's last."""
        self.view.prefilling -= 1
        if number is None:
            return
        one = self.served[number]
        if one.first is None:
            one.first = self.clock
        else:
            self.pipeline.gaps.append(np.array([[self.clock - one.newest, 1.0]]))
        one.newest = self.clock
        one.tokens += 1
        self.made += 1
        if one.tokens < one.request.output:
            self.ready.append(number)
            return
        self.parked -= one.length - 1
        self.cache.release(number)
        self.end(number)

    def end(self, number: int) -> None:
        """End an answer, whose last token comes now."""
        self.served[number].end = self.clock
        self.actions.note("end", number)
        self.finish()

    def join(self, number: int) -> None:
        """Bring a prompt's keys and values to decode, and begin its decode steps."""
        one = self.served[number]
        tokens = one.length - 1  # the newest token is in no cache
        self.parked -= tokens
        self.pipeline.advance(self.clock)
        self.pipeline.hold(self.times.hand_over(tokens))
        running = self.pipeline.join(number, tokens, one.request.output - one.tokens)
        self.actions.note("join", number, running.slot)

    def decoded(self, kind: int, running: Running | None) -> None:
        """Handle an event of a turn."""
        if running is None:  # a wake-up for the organisation
            return
        if kind == END:
            self.release(running)
            self.end(running.number)
        elif self.cache.fits(1):
            self.cache.hold(running.number, 1)
            self.pipeline.grow(running)
        else:
            self.preempt(running)

    def preempt(self, growing: Running) -> None:
        """Let the sequence that arrived last wait again without its cache; then `growing` grows, if it is another."""
        last = max(self.pipeline.running.values(), key=lambda one: arrival(self.served[one.number].request))
        one = self.served[last.number]
        self.release(last)
        if one.tokens == one.request.output:  # its end is due at this turn
            self.end(last.number)
        else:
            one.preempted += 1
            self.queue(last.number)
            self.actions.note("preempt", last.number)
        if last is not growing:
            self.cache.hold(growing.number, 1)
            self.pipeline.grow(growing)

    def release(self, running: Running) -> None:
        """Take a sequence out of the batch, free its cache and count its finished steps."""
        self.actions.leave(running.number)
        one, done = self.served[running.number], self.pipeline.done(running)
        self.made += done
        one.tokens += done
        one.newest = self.pipeline.leave(running, one.newest)
        self.cache.release(running.number)

    def act(self) -> None:
        """Begin all that can begin now."""
        concurrent = self.organisation.concurrent
        if concurrent or (not self.to_prefill and not self.moving):
            while self.ready:
                self.join(self.ready.pop(0))
        if concurrent or (self.to_prefill and not self.moving):
            while self.free[0] <= self.clock and self.startable() and self.organisation.admits(self.look()):
                self.start()
        if not self.moving and self.wants_prefill() != self.to_prefill:
            self.to_prefill, self.moving = not self.to_prefill, True
            if self.to_prefill:
                self.pipeline.advance(self.clock)
                self.pipeline.paused = True
            self.push(self.clock + self.times.switch(), self.moved)

    def look(self) -> View:
        """Return the present state, by which the organisation decides."""
        view, pipeline = self.view, self.pipeline
        view.ready, view.running = len(self.ready), len(pipeline.running)
        view.due = pipeline.turns >= self.due - 1e-9
        return view

    def wants_prefill(self) -> bool:
        """Return whether the weights should be in the regions of prefill."""
        view = self.look()
        view.startable = self.startable()
        return self.organisation.wants_prefill(self.to_prefill, view)

    def moved(self) -> None:
        """Begin the phase whose regions the weights have reached."""
        self.moving = False
        if self.to_prefill:
            self.view.visited = 0
        else:
            self.pipeline.resume(self.clock)
            self.due = self.pipeline.turns + self.organisation.turns
            self.pipeline.wake(self.due)

    def run(self) -> Run:
        """Handle all events in order."""
        pipeline, events = self.pipeline, self.events
        while True:
            outer = events[0][0] if events else inf
            inner = pipeline.next()
            at = min(outer, inner)
            if at == inf:
                break
            passed = at - self.clock
            self.busy["prefill"] += passed * (self.view.prefilling > 0)
            self.busy["re-placement"] += passed * self.moving
            self.samples.lasts(passed, self.state())
            self.clock = at
            self.count_events += 1
            if inner <= outer:
                self.decoded(*pipeline.pop())
            else:
                _, _, event, about = heappop(events)
                event(*about)
            if pipeline.next() > at and self.over < len(self.served):  # all tokens of a moment come before a pause
                self.act()
            if at >= self.samples.due or not events:
                self.sample()
        assert self.over == len(self.served), f"{self.over} of {len(self.served)} requests are over"
        return Run(
            self.served, np.concatenate([np.empty((0, 2)), *pipeline.gaps]), self.busy | {"decode": pipeline.busy},
            self.samples.kept, self.longest_queue, self.cache.peak, self.clock, self.count_events, pipeline.read,
            self.actions.all,
        )  # fmt: skip

    def state(self) -> State:
        """Return the requests that wait, the sequences in decode, and the cache entries in use."""
        return len(self.waiting), len(self.pipeline.running), self.cache.used

    def sample(self) -> None:
        """Keep the state now."""
        self.pipeline.advance(self.clock)
        made = self.made + sum(map(self.pipeline.done, self.pipeline.running.values()))
        self.samples.keep(self.clock, self.state(), self.pipeline.read, made, self.pipeline.busy)
