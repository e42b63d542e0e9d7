"""The demo: SmolLM2-135M on virtual cores, compared with transformers token by token. `make demo` runs it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from wafer_triton.errors import WaferError
from wafer_triton.models.checkpoint.fetch import resolve
from wafer_triton.models.decoder import WaferForCausalLM
from wafer_triton.ops import described
from wafer_triton.ops import executor as executor_of

PROMPTS = ("The capital of France is", "Water boils at a temperature of")
MESH, NEW_TOKENS, TOLERANCE = 24, 32, 1e-3


@dataclass(frozen=True)
class Comparison:
    """Greedy tokens of the mesh, up to the first that differs, and of the reference; their largest logit difference."""

    tokens: list[int]
    expected: list[int]
    difference: float

    @property
    def passed(self) -> bool:
        """Every token equal, and no logit further off than the tolerance (a NaN is)."""
        return self.tokens == self.expected and self.difference < TOLERANCE


def compare(model: WaferForCausalLM, reference: Any, prompt: list[int], new_tokens: int) -> Comparison:
    """Continue a prompt greedily with both; `reference` is transformers' model with the same weights, on any device."""
    ids = torch.tensor([prompt], device=reference.device)
    said = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    expected = said.sequences[0, len(prompt) :].tolist()
    tokens: list[int] = []
    differences: list[torch.Tensor] = []
    model.reset()
    logits = model.prefill(prompt)
    for token, theirs in zip(expected, said.logits, strict=True):
        if tokens:
            logits = model.step(tokens[-1])
        tokens.append(int(logits.argmax()))
        differences.append((logits.float() - theirs[0].to(logits.device).float()).abs().max())
        if tokens[-1] != token:
            break
    return Comparison(tokens, expected, float(torch.stack(differences).max()))


def predicted_line(model: WaferForCausalLM) -> str:
    """Return the predicted speed on the wafer, in each phase, of the model's rounds since `reset`."""
    predicted = model.predicted()
    phases = [phase for phase in ("prefill", "decode") if phase in predicted]
    speeds = (f"{phase} {predicted[phase].tokens_per_second:,.4g} tokens/s" for phase in phases)
    return f"The same rounds, predicted on the wafer: {', '.join(speeds)}."


def main(arguments: Sequence[str] = ()) -> int:
    """Return 0 if every token is the reference's, 1 if not, 2 without a checkpoint or the chosen device."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    parser = argparse.ArgumentParser(prog="demo", description="SmolLM2-135M on virtual cores beside transformers")
    parser.add_argument("--emulate-on", default="auto", metavar="auto|cpu|cuda|cuda:N")
    begun, args = perf_counter(), parser.parse_args(arguments)
    disable_progress_bar()
    torch.set_num_threads(1)  # an operation on a mesh takes microseconds: a second thread only makes it wait
    try:
        executor = executor_of(emulate_on=args.emulate_on)
        folder = resolve("smollm2-135m")
    except WaferError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    print(f"SmolLM2-135M on meshes of {MESH} x {MESH} virtual cores of a WSE-2, fp32, emulated {described(executor)}.")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(torch.device(executor.device))
    model = WaferForCausalLM.from_pretrained(folder, mesh=MESH, dtype="fp32", max_length=64, executor=executor)
    failures = 0
    for prompt in PROMPTS:
        comparison = compare(model, reference, tokenizer(prompt)["input_ids"], NEW_TOKENS)
        tokens, account = comparison.tokens, model.account()
        print(f"\n> {prompt}{tokenizer.decode(tokens, skip_special_tokens=True)}\n")
        if tokens == comparison.expected:
            print(f"All {len(tokens)} tokens equal transformers'.")
        else:
            theirs = tokenizer.decode(comparison.expected[: len(tokens)])
            print(f"Token {len(tokens)} DIFFERS from transformers, which says: {theirs}")
        print(f"Largest logit difference: {comparison.difference:.1e}, allowed: below {TOLERANCE:.0e}.")
        print(f"{account.rounds:,} rounds, {account.hops:,} hops, {account.link_bytes:,} bytes over links.")
        print(predicted_line(model), flush=True)
        failures += not comparison.passed
    verdict = f"FAILED: {failures} of {len(PROMPTS)} prompts" if failures else "Passed"
    print(f"\n{verdict}, in {perf_counter() - begun:.0f} s on this machine.")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
