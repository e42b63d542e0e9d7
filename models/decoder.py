"""A Llama decoder on a virtual wafer: prefill by MeshGEMM and GEMM-T, decode by MeshGEMV, an even KV cache.

The embedding is a table look-up on the host; every matrix product runs on a mesh. Between regions the activation moves
as it lies, tile by tile; `hand_off` accounts for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from wafer_triton.account import Account
from wafer_triton.dtype import dtype_name, torch_dtype
from wafer_triton.errors import CacheError, ShapeError
from wafer_triton.executor import Executor, Program
from wafer_triton.layout import scatter
from wafer_triton.mesh import Mesh, as_mesh
from wafer_triton.models.blocks import Block
from wafer_triton.models.config import DecoderConfig
from wafer_triton.models.placement import (
    Region,
    Weights,
    attention_tiles,
    check_prompt,
    ffn_tiles,
    head_block,
    head_tiles,
    regions,
    schedule,
)
from wafer_triton.models.prefill import Prefill, Progress, account_of, silent
from wafer_triton.models.weights import load_weights
from wafer_triton.schedule.kv_cache import KvCache
from wafer_triton.schedule.rounds import Buffer
from wafer_triton.torch_executor import TorchExecutor


class WaferForCausalLM:
    """A decoder whose matrix products run on a mesh of virtual cores.

    `weights` are under Hugging Face names. `max_length` tokens (prompt and new) fit the KV cache, prompts of up to
    `max_prompt` the SRAM beside the weights; `kv_policy` "concat" fills the last row alone and overflows sooner.
    Raises SramError or MeshError when the model does not fit the mesh or the device.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Weights,
        *,
        mesh: Mesh,
        dtype: str = "fp32",
        accumulate: str = "fp32",
        max_length: int = 512,
        max_prompt: int = 64,
        kv_policy: str = "shift",
        executor: Executor | None = None,
        progress: Progress = silent,
    ) -> None:
        self.config, self.weights = config, weights
        self.executor = TorchExecutor() if executor is None else executor
        self.block = Block(config, mesh, dtype, accumulate, -(-max_length // mesh.rows), kv_policy)
        self.regions: list[Region] = regions(self.block, min(max_prompt, max_length))
        self.max_length = max_length
        self.count = 0  # tokens in the cache
        self.cache: KvCache = self.block.cache()
        self.accounts: list[Account] = []
        self._place(progress)

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, mesh: Any, device: str = "wse2", dtype: str = "fp32", **options: Any
    ) -> WaferForCausalLM:
        """A model from a folder in Hugging Face layout (config.json and safetensors)."""
        config = DecoderConfig.from_folder(folder)
        name = dtype_name(dtype)
        weights = load_weights(Path(folder), config, torch_dtype(name))
        return cls(config, weights, mesh=as_mesh(mesh, device), dtype=name, **options)

    # --- placement ---

    def _place(self, progress: Progress) -> None:
        block, layers = self.block, self.config.num_hidden_layers
        project, attend, ffn = (schedule(block, step) for step in ("decode_project", "decode_attend", "decode_ffn"))
        self._decode = (project, attend, ffn)
        shared = {  # by all layers: the activation and what depends on the position alone
            name: self.executor.allocate(project if name in project.buffers else attend, buffer)
            for name, buffer in {**attend.buffers, **project.buffers}.items()
            if name in ("x", "cos", "sin", "bias", "q", "k", "v")
        }
        scratch: dict[Buffer, torch.Tensor] = {}
        self.layers: list[list[Program]] = []
        for layer in range(layers):
            caches = {name: self.executor.allocate(project, project.buffers[name]) for name in ("k_cache", "v_cache")}
            for cache in caches.values():
                cache.zero_()  # empty slots are masked, which NaN would pass through
            tiles = attention_tiles(self.weights, layer, block, "decode")
            first = self.executor.bind(project, tiles, shared | caches, scratch)
            second = self.executor.bind(attend, {}, first.memory, scratch)
            third = self.executor.bind(ffn, ffn_tiles(self.weights, layer, block, "decode"), shared, scratch)
            self.layers.append([first, second, third])
            progress("placing weights", layer + 1, layers)
        self.head_block = head_block(block)
        head = schedule(self.head_block, "head")
        x = {"x": self.executor.allocate(head, head.buffers["x"])}
        self.head = self.executor.bind(head, head_tiles(self.weights, self.head_block), x)

    def _tiles(self, tensor: torch.Tensor, pattern: str) -> torch.Tensor:
        return scatter(tensor, self.block.mesh, pattern).tiles

    # --- running ---

    def reset(self) -> None:
        """Forget the cached tokens and the account of the run."""
        self.count = 0
        self.cache = self.block.cache()
        self.accounts = []

    def account(self) -> Account:
        """Rounds, hops and bytes of everything since `reset`."""
        return sum(self.accounts, Account())

    def prefill(self, tokens: Sequence[int], progress: Progress = silent) -> torch.Tensor:
        """Run a prompt through the empty cache; logits [vocab] of its last token.

        Raises ShapeError for an empty prompt, CacheError for one longer than the cache.
        """
        if len(tokens) == 0:
            raise ShapeError("the prompt is empty; give at least one token")
        self._room(len(tokens), len(tokens))
        if self.count:
            raise CacheError(f"prefill needs an empty cache, which holds {self.count} tokens; call reset() first")
        check_prompt(self.block, self.regions, len(tokens))
        prefill = Prefill(self.block, self.weights, self.executor, len(tokens))
        caches = [project.memory for project, _, _ in self.layers]
        x = prefill.run(self.embed(tokens), self.rotary(torch.arange(len(tokens))), caches, progress)
        self.count = len(tokens)
        self.cache = self.block.cache(self.count)
        self.accounts.append(prefill.account)
        return self._logits(x[-1:])

    def step(self, token: int) -> torch.Tensor:
        """Run one token behind the cached ones; logits [vocab]. Raises CacheError when the cache is full."""
        self._room(self.count + 1, self.cache.prefilled)
        block = self.block
        cos, sin = self.rotary(torch.tensor([self.count]))
        first, second, _ = self.layers[0]
        first.write("x", self._tiles(self.embed([token]), "m (y d)"))
        first.write("cos", self._tiles(cos, "m (x p)"))
        first.write("sin", self._tiles(sin, "m (x p)"))
        held = torch.from_numpy(self.cache.positions(self.count + 1) >= 0)
        bias = torch.where(held, 0.0, float("-inf"))[:, None, None, :].expand(-1, block.mesh.shape[1], -1, -1)
        second.write("bias", bias)
        append = block.decode_append(self.count, self.cache.prefilled)
        for project, attend, ffn in self.layers:
            project.run()
            self.executor.bind(append, {}, project.memory).run()
            attend.run()
            ffn.run()
        self.count += 1
        layer = sum((account_of(one) for one in self._decode), account_of(append))
        self.accounts.append(layer * self.config.num_hidden_layers + self.hand_off)
        x = scatter(torch.zeros(1, self.config.hidden_size), block.mesh, "m (y d)")
        return self._logits(replace(x, tiles=self.layers[-1][2].read("x")).gather())

    def generate(self, tokens: Sequence[int], max_new_tokens: int, progress: Progress = silent) -> Iterator[int]:
        """Greedy tokens after a prompt, one by one, until an end-of-text token (not given) or the maximum.

        Raises CacheError at the start if the prompt and the new tokens do not fit the cache.
        """
        self.reset()
        self._room(len(tokens) + max_new_tokens - 1, len(tokens))
        logits = self.prefill(tokens, progress)
        for number in range(max_new_tokens):
            token = int(logits.argmax())
            if token in self.config.eos_token_ids:
                return
            yield token
            if number + 1 < max_new_tokens:
                logits = self.step(token)

    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        """Rows of the embedding table [tokens, width], looked up on the host; ShapeError for an unknown token."""
        ids = torch.as_tensor(list(tokens), dtype=torch.long)
        if int(ids.min()) < 0 or int(ids.max()) >= self.config.vocab_size:
            raise ShapeError(f"token {int(ids.max())} is outside the vocabulary of {self.config.vocab_size}")
        return self.weights["model.embed_tokens.weight"][ids]

    def rotary(self, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [positions, head_dim / 2]."""
        frequencies, factor = self.config.inv_freq()
        angle = position[:, None].float() * frequencies[None, :]
        return angle.cos() * factor, angle.sin() * factor

    @cached_property
    def hand_off(self) -> Account:
        """The activation's way from region to region, every core to its counterpart."""
        total = Account()
        for one, two in zip(self.regions, self.regions[1:], strict=False):
            hops = sum(abs(a - b) for a, b in zip(one.mesh.origin, two.mesh.origin, strict=True))
            size = self._decode[0].buffers["x"].bytes
            total += Account(1, 1, hops, one.mesh.cores, one.mesh.cores * size * hops, size)
        return total

    def _room(self, count: int, prefilled: int) -> None:
        if count > self.max_length:
            raise CacheError(
                f"{count} tokens do not fit the KV cache of max_length = {self.max_length}; give a larger max_length"
            )
        self.block.cache(prefilled).room(count)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        mesh = self.head_block.mesh
        self.head.write("x", scatter(x, mesh, "m (y d)").tiles)
        self.head.run()
        self.accounts.append(account_of(self.head.schedule))
        whole = scatter(torch.zeros(1, self.config.vocab_size), mesh, "m (x v)")
        return replace(whole, tiles=self.head.read("logits")).gather()[0]
