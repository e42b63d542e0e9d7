"""`wafer-triton generate`: a text continued by a decoder on a mesh of virtual cores."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from itertools import chain, islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

from wafer_triton.cli import ranks
from wafer_triton.cli.options import (
    CHECKPOINT,
    EXECUTION,
    PLACE,
    Command,
    checkpoint_of,
    count,
    cut_short,
    executor_of,
    file_of,
    mesh_of,
    option,
    people,
    searching,
    tell_where,
    utf8,
)
from wafer_triton.errors import CacheError, ShapeError, writing

if TYPE_CHECKING:
    from wafer_triton.models.checkpoint.checkpoint import Checkpoint
    from wafer_triton.place.regions import Placement


def generate(args: argparse.Namespace) -> int:
    """continue a text greedily, every matrix product on a mesh of virtual cores"""
    if not args.prompt:
        raise ShapeError("the prompt is empty; give at least one character")
    from wafer_triton.cli.profiling import profiled
    from wafer_triton.cost.inference import answer_steps
    from wafer_triton.cost.placement import where
    from wafer_triton.draw.generation import Generation, generation_tables, regions_table
    from wafer_triton.draw.progress import Progress
    from wafer_triton.models import effort
    from wafer_triton.models.checkpoint.checkpoint import Checkpoint
    from wafer_triton.models.decoder import WaferForCausalLM

    stream = people(args.json)
    if args.routing_out is not None and Checkpoint(args.model).config.experts is None:
        raise ShapeError(f"{args.model} has no experts, so that there is no routing to write; leave out --routing-out")
    executor, checkpoint = executor_of(args), checkpoint_of(args, args.max_new_tokens)
    positions = checkpoint.config.context
    if args.max_length and args.max_length > positions:
        raise CacheError(
            f"--max-length {args.max_length:,} is more than the {positions:,} positions of {args.model} "
            f"(max_position_embeddings in its config.json); give no more"
        )
    text = TextStream(checkpoint, args.prompt)
    if not text.prompt:
        raise ShapeError(f"the prompt {args.prompt!r} has no token by the tokenizer of {args.model}; give another")
    checkpoint.config.check_tokens(text.prompt)
    longest = len(text.prompt) + args.max_new_tokens - 1  # the last token is not cached
    if args.max_length and longest > args.max_length:
        raise CacheError(f"{longest} tokens do not fit the KV cache; give a --max-length of {longest}, or none")
    checkpoint.config.room(longest)

    def placed(placement: Placement) -> None:
        tell_where(executor)
        steps = answer_steps(args.max_new_tokens)
        progress.announce(effort.seconds(placement, executor, tokens=len(text.prompt), steps=steps))

    begun = perf_counter()
    searching(args)
    with Progress() as progress:
        model = WaferForCausalLM.from_pretrained(
            checkpoint,
            mesh=mesh_of(args),
            device=args.device,
            head_groups=args.head_groups,
            experts=args.experts,
            dtype=args.dtype,
            accumulate=args.accumulate,
            max_length=args.max_length or len(text.prompt) + args.max_new_tokens,
            max_prompt=len(text.prompt),
            executor=executor,
            progress=progress,
            placed=placed,
        )
        loaded = perf_counter()
        tokens = model.generate(text.prompt, args.max_new_tokens, progress)
        first = list(islice(tokens, 1))
    prefilled, interrupted = perf_counter(), False
    try:
        with profiled(args.profile if ranks.number() == 0 else None) as stepped:
            for token in chain(first, tokens):
                print(text.push(token), end="", file=stream, flush=True)
                stepped()
    except KeyboardInterrupt:
        interrupted = True
    ended = perf_counter()
    print(text.rest(), file=stream, flush=True)
    generation = Generation(
        text=text.shown,
        tokens=text.tokens,
        prompt_tokens=len(text.prompt),
        steps=model.count - len(text.prompt),
        settings={name: getattr(args, name) for name in ("dtype", "accumulate", "exchange")}
        | {"backend": type(model.executor).__name__.removesuffix("Executor").lower()},
        mesh=model.block.mesh,
        prefill_mesh=model.placement.prefill.mesh,
        head_groups=model.block.head_groups,
        experts=where(model.placement.prefill, len(text.prompt)),
        regions=model.regions,
        account=model.account(),
        predicted={phase: prediction.as_json() for phase, prediction in model.predicted().items()},
        cap={phase: asdict(measures) for phase, measures in model.passes.cap().items()},
        passes=[each.as_json() for each in model.passes],
        load_seconds=loaded - begun,
        prefill_seconds=prefilled - loaded,
        decode_seconds=ended - prefilled,
        interrupted=interrupted,
    )
    for table in generation_tables(generation):
        print(f"\n{table.on(stream)}", file=stream)
    if args.routing_out is not None:
        trace = model.passes.trace()
        if ranks.number() == 0:
            with writing(args.routing_out):
                args.routing_out.write_text(json.dumps({"experts": trace}), encoding="utf-8")
    if args.regions:
        print(f"\n{regions_table(model.regions).on(stream)}", file=stream)
    if args.json:
        print(json.dumps(generation.as_json()))
    return cut_short(f"after {len(text.tokens)} tokens") if interrupted else 0


class TextStream:
    """A prompt's tokens, and the text of new ones as they come; raises CheckpointError without a tokenizer.

    The bytes of one character may be spread over tokens, so text that ends in the middle of one waits for the rest. Of
    several ranks the one that prints has the tokenizer; for the others all text is empty.
    """

    def __init__(self, checkpoint: Checkpoint, prompt: str) -> None:
        self._tokenizer: Any = None

        def tokenized() -> list[int]:
            self._tokenizer = checkpoint.tokenizer
            ids: list[int] = self._tokenizer(prompt)["input_ids"]
            return ids

        self.prompt = ranks.of_first(tokenized)
        self.tokens: list[int] = []
        self.shown = ""
        # With the prompt in front, a tokenizer that strips the first space keeps the first space of the new text.
        self._start = len(self._decode())

    def push(self, token: int) -> str:
        """Return the text that `token` completes, which may be none."""
        self.tokens.append(token)
        return "" if self._decode().endswith("\ufffd") else self.rest()

    def rest(self) -> str:
        """Return the text not shown yet, complete or not."""
        new = self._decode()[self._start + len(self.shown) :]
        self.shown += new
        return new

    def _decode(self) -> str:
        if self._tokenizer is None:
            return ""
        tokens = self.prompt + self.tokens
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


COMMANDS = (
    Command(
        "generate",
        generate,
        (
            CHECKPOINT,
            option("--prompt", type=utf8, required=True, help="the text to continue, as it is"),
            option("--max-new-tokens", type=count, default=32, metavar="N", help="stop after N (default: %(default)s)"),
            option(
                "--max-length",
                type=count,
                metavar="N",
                help="tokens that the KV cache holds (default: as many as needed)",
            ),
            option(
                "--profile",
                type=file_of(".json"),
                metavar="FILE.json",
                help="profile the emulation of the first decode steps: a trace for Perfetto, in time of this machine",
            ),
            option(
                "--routing-out",
                type=file_of(".json"),
                metavar="FILE.json",
                help="write which experts each token took",
            ),
            option("--regions", action="store_true", help="list which blocks lie on which region"),
            *PLACE,
            *EXECUTION,
        ),
    ),
)
