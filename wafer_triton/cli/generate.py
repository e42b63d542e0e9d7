"""`wafer-triton generate`: a text continued by a decoder on a mesh of virtual cores."""

from __future__ import annotations

import json as jsons
import sys
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from wafer_triton.cli import ranks
from wafer_triton.cli.answer import cut_short, people
from wafer_triton.cli.app import made
from wafer_triton.device import device as find_device
from wafer_triton.device.mesh import Mesh, as_mesh
from wafer_triton.errors import CacheError, ConfigError, ShapeError, writing
from wafer_triton.text.table import fitted

if TYPE_CHECKING:
    from wafer_triton.models.checkpoint.checkpoint import Checkpoint
    from wafer_triton.place.regions import Placement


def _generate(
    *, model: str, prompt: str, max_new_tokens: int = 32, max_length: int | None = None, mesh: str = "16",
    device: str = "wse2", head_groups: int | None = None, experts: str | None = None, dtype: str = "fp16",
    accumulate: str = "fp32", exchange: str = "explicit", emulate_on: str = "auto", backend: str | None = None,
    shards: str | None = None, regions: bool = False, routing_out: Path | None = None, profile: Path | None = None,
    json: bool = False,
) -> int:  # fmt: skip
    if not prompt:
        raise ShapeError("the prompt is empty; give at least one character")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"--prompt {prompt!a}: is not UTF-8 text (at character {error.start}), or the locale is not; "
            f"try LC_ALL=C.UTF-8"
        ) from None
    import torch

    from wafer_triton import distributed
    from wafer_triton.cli.profiling import profiled
    from wafer_triton.cost.placement import where
    from wafer_triton.draw.generation import Generation, generation_tables, regions_table
    from wafer_triton.draw.progress import Progress
    from wafer_triton.models.checkpoint.checkpoint import Checkpoint
    from wafer_triton.models.decoder import WaferForCausalLM
    from wafer_triton.ops import described

    stream = people(json)
    if routing_out is not None and Checkpoint(model).config.experts is None:
        raise ShapeError(f"{model} has no experts, so that there is no routing to write; leave out --routing-out")
    # A step on a mesh is thousands of operations of some microseconds each: a second thread only makes them wait.
    torch.set_num_threads(1)
    executor = distributed.executor(backend, exchange, shards=shards, emulate_on=emulate_on)
    on = None if mesh == "plan" else as_mesh(mesh, device)
    checkpoint = _checkpoint(model, on, head_groups, dtype, max_new_tokens)
    positions = checkpoint.config.context
    if max_length and max_length > positions:
        raise CacheError(
            f"--max-length {max_length:,} is more than the {positions:,} positions of {model} "
            f"(max_position_embeddings in its config.json); give no more"
        )
    text = TextStream(checkpoint, prompt)
    if not text.prompt:
        raise ShapeError(f"the prompt {prompt!r} has no token by the tokenizer of {model}; give another")
    checkpoint.config.check_tokens(text.prompt)
    longest = len(text.prompt) + max_new_tokens - 1  # the last token is not cached
    if max_length and longest > max_length:
        raise CacheError(f"{longest} tokens do not fit the KV cache; give a --max-length of {longest}, or none")
    checkpoint.config.room(longest)

    def placed(placement: Placement) -> None:
        print(f"emulated {described(executor)}", file=sys.stderr, flush=True)

    begun = perf_counter()
    find_device(device)  # before a search is announced
    if on is None and ranks.number() == 0:
        print(
            f"searching the fastest meshes for {model} on {device}, which takes about a minute here; "
            f"a --mesh such as 16 takes none",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    with Progress() as progress:
        decoder = WaferForCausalLM.from_pretrained(
            checkpoint,
            mesh=on,
            device=device,
            head_groups=head_groups,
            experts=experts,
            dtype=dtype,
            accumulate=accumulate,
            max_length=max_length or len(text.prompt) + max_new_tokens,
            max_prompt=len(text.prompt),
            executor=executor,
            progress=progress,
            placed=placed,
        )
        loaded = perf_counter()
        tokens = decoder.generate(text.prompt, max_new_tokens, progress)
        first = list(islice(tokens, 1))
    prefilled, interrupted = perf_counter(), False
    try:
        with profiled(profile if ranks.number() == 0 else None) as stepped:
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
        steps=decoder.count - len(text.prompt),
        settings={"dtype": dtype, "accumulate": accumulate, "exchange": exchange}
        | {"backend": type(decoder.executor).__name__.removesuffix("Executor").lower()},
        mesh=decoder.block.mesh,
        prefill_mesh=decoder.placement.prefill.mesh,
        head_groups=decoder.block.head_groups,
        experts=where(decoder.placement.prefill, len(text.prompt)),
        regions=decoder.regions,
        account=decoder.account(),
        predicted={phase: prediction.as_json() for phase, prediction in decoder.predicted().items()},
        cap={phase: asdict(measures) for phase, measures in decoder.passes.cap().items()},
        passes=[each.as_json() for each in decoder.passes],
        load_seconds=loaded - begun,
        prefill_seconds=prefilled - loaded,
        decode_seconds=ended - prefilled,
        interrupted=interrupted,
    )
    for table in generation_tables(generation):
        print(f"\n{fitted(stream, table)}", file=stream)
    if routing_out is not None:
        trace = decoder.passes.trace()
        if ranks.number() == 0:
            with writing(routing_out):
                routing_out.write_text(jsons.dumps({"experts": trace}), encoding="utf-8")
    if regions:
        print(f"\n{fitted(stream, regions_table(decoder.regions))}", file=stream)
    if json:
        print(jsons.dumps(generation.as_json()))
    return cut_short(f"after {len(text.tokens)} tokens") if interrupted else 0


generate = made(
    _generate,
    written={"routing_out": (".json",), "profile": (".json",)},
    words={
        "model": (str | Path, "a folder with weights, or smollm2-135m, which is fetched"),
        "mesh": (str, "rows x columns of cores, 48x64, or 64 for 64x64, or plan: the fastest, slow here"),
    },
)


def _checkpoint(model: str, mesh: Mesh | None, head_groups: int | None, dtype: str, tokens: int) -> Checkpoint:
    """Return a checkpoint; raises for its faults, and for faults of a mesh, its head groups and a number of tokens.

    These are judged before the tokenizer is loaded, which takes seconds, and before weights are placed.
    """
    from wafer_triton.decoder.heads import HeadGroups
    from wafer_triton.device.dtype import torch_dtype
    from wafer_triton.models.checkpoint.checkpoint import Checkpoint

    checkpoint = Checkpoint(model)
    checkpoint.weights(torch_dtype(dtype))
    checkpoint.config.room(tokens)
    if mesh is not None:
        mesh.square()  # of prefill
        if head_groups is not None:
            HeadGroups(checkpoint.config, mesh.cols, head_groups)
    return checkpoint


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
