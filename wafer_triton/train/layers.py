"""The computation of a layer on dies, forward and backward: norms, products, attention, activations, embedding.

In attention with moving weights ("w") a die has rows of its own and all heads: keys and values of the group's other
rows are gathered, and their gradients summed. With "xy" a die has all rows of the group and heads of its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

import wafer_triton.train.operations  # noqa: F401  # registers the local operations of training
from wafer_triton.schedule.builder import Builder
from wafer_triton.schedule.rounds import Slot
from wafer_triton.schedule.schedule import Schedule
from wafer_triton.schedule.stream_rounds import gather, reduce
from wafer_triton.train.linear import Linear, take
from wafer_triton.train.machine import Machine
from wafer_triton.train.model import Sizes, angles
from wafer_triton.train.product import Team, collective
from wafer_triton.train.shards import DieGroups, Rows, Shards, padded, spread

Saved = dict[str, Tensor]


class Placed(Protocol):
    """A model on dies, as in a `Trainer`: its parameters in blocks, and the order in which a die has the blocks."""

    machine: Machine
    sizes: Sizes
    die_groups: DieGroups
    team: Team
    shards: Shards
    order: Tensor
    weights: dict[str, Tensor]
    grads: dict[str, Tensor]
    linears: dict[tuple[Any, ...], Linear]

    def everywhere(self, own: Tensor) -> Tensor:
        """Return the blocks of all positions of a group, gathered on each of its dies."""


@lru_cache(maxsize=256)
def _embedding(team: Team, m: int, d: int, v: int, back: bool) -> Schedule:
    """Return the schedule of a lookup of m ids in a table of moving blocks [d, v]; with `back`, of its gradient.

    An id is relative to the first of the block. The lookup gathers the blocks, the gradient reduces them.
    """
    b = Builder(team.mesh, "embedding gradient" if back else "embedding")
    ids = b.buffer("ids", (m,), "fp32", "input", team.size)
    if back:
        dx, table = b.buffer("dx", (m, d), "fp32", "input"), b.buffer("table", (d, v), "fp32", "output")
        reduce(
            b, team.moves, team.groups, table,
            lambda t, part, where: [b.local("lookup_back", part, [dx, Slot(ids, t)], where, m=m, d=d, v=v)],
        )  # fmt: skip
    else:
        table, out = b.buffer("table", (d, v), "fp32", "input"), b.buffer("x", (m, d), "fp32", "output")
        found = b.buffer("found", (m, d), "fp32")

        def step(t: int, block: str, where: Any) -> list[Any]:
            seek = b.local("lookup", found if t else out, [block, Slot(ids, t)], where, m=m, d=d, v=v)
            return [seek, b.local("add", out, [out, found], where, size=m * d)] if t else [seek]

        gather(b, team.moves, team.groups, table, step)
    return b.build()


class MicroBatch:
    """Forward and backward of one micro-batch; each step is a run of the machine."""

    def __init__(self, trainer: Placed, rows: Rows, vectors: Tensor) -> None:
        self.trainer, self.rows, self.m = trainer, rows, rows.m
        self.machine, self.sizes, self.team = trainer.machine, trainer.sizes, trainer.team
        self.die_groups = trainer.die_groups
        self.llama, self.pairs = self.sizes.kind == "llama", self.die_groups.moving == "xy"
        starts = 0
        self.vectors: dict[str, Tensor] = {}
        for name, size in self.sizes.vectors.items():
            self.vectors[name] = vectors[..., starts : starts + size]
            starts += size
        self.dvectors: dict[str, Tensor] = {}
        # attention has all rows of the group and some heads, or own rows and all heads
        self.ranks = self.team.size if self.pairs else 1
        self.heads, self.kv_heads = self.sizes.heads // self.ranks, self.sizes.kv_heads // self.ranks
        self.exchanged = not self.pairs and self.die_groups.split == "sequence" and self.team.size > 1
        own = {name: self.real(getattr(rows, name)) for name in ("at", "low", "high")}
        every = {name: self.real(self._all(getattr(rows, name))) for name in ("at", "low", "high")}
        self.sees = {name: (every if self.pairs else own)[name] for name in ("low", "high")}
        self.sees["at"] = (every if self.pairs or self.exchanged else own)["at"]
        angle = angles(self.sizes, self._all(rows.position) if self.pairs else rows.position)
        self.turns = {"cos": self.real(angle.cos()), "sin": self.real(angle.sin())}

    def real(self, values: Tensor) -> Tensor:
        return values.to(self.machine.dtype)

    def _all(self, own: Tensor) -> Tensor:
        """Return the values [rows, cols, m] of all dies of a group, [rows, cols, N * m], without a machine's run."""
        every = torch.zeros(*own.shape[:2], self.team.size * own.shape[2], dtype=own.dtype)
        for group in self.team.groups:
            joined = torch.cat([own[die] for die in group])
            for die in group:
                every[die] = joined
        return every

    # --- embedding ---

    def embed(self) -> Tensor:
        table = self.trainer.weights["embed"]
        d, v = table.shape[-2:]
        x = self.machine.run(_embedding(self.team, self.m, d, v, False), table=table, ids=self._ids(v))["x"]
        return x if self.llama else self.machine.add(x, self._positions())

    def embed_back(self, dx: Tensor) -> None:
        d, v = self.trainer.weights["embed"].shape[-2:]
        out = self.machine.run(_embedding(self.team, self.m, d, v, True), dx=dx, ids=self._ids(v))
        self._grad("embed", out["table"])
        if not self.llama:
            real = (self.rows.ids >= 0)[..., None]
            index = self.rows.position[..., None].expand_as(dx)
            whole = self.machine.zeros(self.sizes.positions, self.sizes.width)
            self._dvector("positions", whole.scatter_add_(2, index, dx * real).flatten(2))

    def _ids(self, v: int) -> Tensor:
        """Return [rows, cols, N, m]: for each step the ids, relative to the first of the step's block."""
        return self.real(self.rows.ids[:, :, None] - self.trainer.order[..., None] * v)

    def _positions(self) -> Tensor:
        table = self.vectors["positions"].unflatten(-1, (-1, self.sizes.width))
        index = self.rows.position[..., None].expand(*self.rows.position.shape, self.sizes.width)
        return table.gather(2, index)

    # --- norms and products ---

    def norm(self, name: str, x: Tensor) -> Tensor:
        m, n = x.shape[2:]
        ins = {"x": x, "weight": self.vectors[name], "bias": self._bias_of(name, n)}
        return self.machine.local(
            "norm_rows", {"out": (m, n)}, ins, m=m, n=n, eps=self.sizes.eps, centre=not self.llama
        )["out"]

    def norm_back(self, name: str, x: Tensor, dy: Tensor) -> Tensor:
        m, n = x.shape[2:]
        out = self.machine.local(
            "norm_rows_back", {"dx": (m, n), "dweight": (n,), "dbias": (n,)},
            {"dy": dy, "x": x, "weight": self.vectors[name]}, m=m, n=n, eps=self.sizes.eps, centre=not self.llama,
        )  # fmt: skip
        self._dvector(name, out["dweight"])
        if not self.llama:
            self._dvector(f"{name}.bias", out["dbias"])
        return out["dx"]

    def _bias_of(self, name: str, n: int) -> Tensor:
        """Return the bias of a norm or of a weight with n outputs; zeros without a bias."""
        bias = self.vectors.get(f"{name}.bias")
        return self.machine.zeros(n) if bias is None else bias

    def linear(self, weight: str, moving: str, x: Tensor, k: int, columns: int) -> Tensor:
        """Return Y = X W, for the `moving` operand of `wafer_triton.train.linear`.

        With "w" a die has its rows and all columns, [rows, cols, m, N * columns]; with "x" all rows and its columns;
        with "y" its rows.
        """
        size = self.team.size
        if moving == "y":
            x = x.unflatten(2, (size, self.m))
        y = self._linear(moving, k, columns).forward(x, self.trainer.weights[weight])
        if moving == "w":
            return y.transpose(2, 3).flatten(3)
        return y.flatten(2, 3) if moving == "x" else y

    def linear_back(self, weight: str, moving: str, x: Tensor, dy: Tensor) -> Tensor:
        """Return dX in the layout of X, and add dW to the gradients."""
        size, (k, columns) = self.team.size, self.trainer.weights[weight].shape[-2:]
        if moving == "w":
            dy = dy.unflatten(3, (size, columns)).transpose(2, 3)
        elif moving == "x":
            dy = dy.unflatten(2, (size, self.m))
        else:
            x = x.unflatten(2, (size, self.m))
        dx, dw = self._linear(moving, k, columns).backward(x, self.trainer.weights[weight], dy)
        self._grad(weight, dw)
        return dx.flatten(2, 3) if moving == "y" else dx

    def _linear(self, moving: str, k: int, columns: int) -> Linear:
        key = (moving, self.m, k, columns)
        known = self.trainer.linears
        if key not in known:
            known[key] = Linear(self.machine, self.team, moving, self.m, k, columns)
        return known[key]

    def project(self, layer: int, matrix: str, x: Tensor) -> Tensor:
        """Return a product of the layer plus its bias, without columns of padding."""
        weight, names = self.trainer.weights[f"{layer}.{matrix}"], self.sizes.matrices[matrix]
        y = self.linear(f"{layer}.{matrix}", self._moving(matrix), x, *weight.shape[-2:])
        width = sum(map(self.sizes.columns, names))
        y = y[..., : width if self._moving(matrix) != "x" else None]
        if self.llama:
            return y
        m, n = y.shape[2:]
        return self.machine.local("add_row", {"out": (m, n)}, {"x": y, "row": self._bias(layer, matrix)}, m=m, n=n)[
            "out"
        ]

    def project_back(self, layer: int, matrix: str, x: Tensor, dy: Tensor) -> Tensor:
        names, moving = self.sizes.matrices[matrix], self._moving(matrix)
        if not self.llama:
            m, n = dy.shape[2:]
            db = self.machine.local("sum_rows", {"out": (n,)}, {"x": dy}, m=m, n=n)["out"]
            if moving == "x":  # the die's own columns of all
                own = spread(self.team, self.trainer.shards.bias_columns(names))
                db = self.machine.zeros(sum(map(self.sizes.columns, names))).scatter_(2, own, db)
            for name, part in zip(names, db.split([*map(self.sizes.columns, names)], -1), strict=True):
                if self.sizes.biased(name):
                    self._dvector(f"{layer}.{name}.bias", part)
        if moving == "w":
            columns = self.team.size * self.trainer.weights[f"{layer}.{matrix}"].shape[-1]
            dy = padded(dy, columns)
        return self.linear_back(f"{layer}.{matrix}", moving, x, dy)

    def _moving(self, matrix: str) -> str:
        return "w" if not self.pairs else "x" if matrix in ("qkv", "inner") else "y"

    def _bias(self, layer: int, matrix: str) -> Tensor:
        names = self.sizes.matrices[matrix]
        whole = torch.cat([self._bias_of(f"{layer}.{name}", self.sizes.columns(name)) for name in names], -1)
        if self._moving(matrix) != "x":
            return whole
        return whole.gather(2, spread(self.team, self.trainer.shards.bias_columns(names)))

    # --- a layer ---

    def layer(self, number: int, x: Tensor) -> tuple[Tensor, Saved]:
        a = self.norm(f"{number}.norm_a", x)
        q, k, v = self._heads(self.project(number, "qkv", a))
        if self.llama:
            q, k = self._turn(q, self.heads), self._turn(k, self.kv_heads)
        if self.exchanged:
            k, v = self._gathered(torch.cat([k, v], 3)).split(self.kv_heads, 3)
        mixed, p = self._attend(q, k, v)
        x1 = self.machine.add(x, self.project(number, "o", mixed))
        f = self.norm(f"{number}.norm_f", x1)
        u = self.project(number, "inner", f)
        h = self._activate(u)
        out = self.machine.add(x1, self.project(number, "out", h))
        return out, {"a": a, "q": q, "k": k, "v": v, "p": p, "mixed": mixed, "x1": x1, "f": f, "u": u, "h": h}

    def layer_back(self, number: int, saved: Saved, d: Tensor) -> Tensor:
        dh = self.project_back(number, "out", saved["h"], d)
        df = self.project_back(number, "inner", saved["f"], self._activate_back(saved["u"], dh))
        d = self.machine.add(d, self.norm_back(f"{number}.norm_f", saved["x1"], df))
        dmixed = self.project_back(number, "o", saved["mixed"], d)
        q, k, v = saved["q"], saved["k"], saved["v"]
        p = saved["p"] if "p" in saved else self._attend(q, k, v)[1]
        out = self.machine.local(
            "attend_back", {f"d{name}": tuple(held.shape[2:]) for name, held in (("q", q), ("k", k), ("v", v))},
            {"dout": dmixed, "p": p, "q": q, "k": k, "v": v}, **self._attention(q, k),
        )  # fmt: skip
        dq, dk, dv = out["dq"], out["dk"], out["dv"]
        if self.exchanged:
            dk, dv = self._summed(torch.cat([dk, dv], 3)).split(self.kv_heads, 3)
        if self.llama:
            dq, dk = self._turn(dq, self.heads, back=True), self._turn(dk, self.kv_heads, back=True)
        dqkv = torch.cat([dq.flatten(3), dk.flatten(3), dv.flatten(3)], -1)
        da = self.project_back(number, "qkv", saved["a"], dqkv)
        return self.machine.add(d, self.norm_back(f"{number}.norm_a", saved["x"], da))

    def _heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        held = qkv.unflatten(-1, (-1, self.sizes.head)).split([self.heads, self.kv_heads, self.kv_heads], 3)
        return held[0], held[1], held[2]

    def _turn(self, x: Tensor, heads: int, back: bool = False) -> Tensor:
        m, n = x.shape[2], self.sizes.head
        out = self.machine.local(
            "rotate", {"out": (m, heads, n)}, {"x": x} | self.turns, m=m, heads=heads, n=n, back=back
        )
        return out["out"]

    def _attention(self, q: Tensor, k: Tensor) -> dict[str, int]:
        shape = {"m": q.shape[2], "s": k.shape[2], "heads": self.heads, "kv_heads": self.kv_heads}
        return shape | {"n": self.sizes.head}

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        shape = self._attention(q, k)
        outs = {"mixed": tuple(q.shape[2:]), "p": (self.heads, shape["m"], shape["s"])}
        sees = {name: self.sees[name] for name in ("low", "high", "at")}
        out = self.machine.local("attend", outs, {"q": q, "k": k, "v": v} | sees, **shape)
        return out["mixed"].flatten(3), out["p"]

    def _gathered(self, kv: Tensor) -> Tensor:
        """Return keys and values of all rows of the group, from each die's rows [rows, cols, m, 2 kv_heads, head]."""
        whole = self.trainer.everywhere(kv.flatten(2))
        return whole.unflatten(2, (self.team.size * self.m, *kv.shape[3:]))

    def _summed(self, dkv: Tensor) -> Tensor:
        """Return for each die's rows the sum over the dies of the gradients of all rows."""
        parts = take(dkv.unflatten(2, (self.team.size, self.m)).flatten(3), self.trainer.order)
        own = self.machine.run(collective(self.team, "reduce", parts.shape[-1]), parts=parts)["own"]
        return own.unflatten(2, (self.m, *dkv.shape[3:]))

    def _activate(self, u: Tensor) -> Tensor:
        m, n = u.shape[2:]
        if self.llama:
            return self.machine.local("silu_mul", {"out": (m, n // 2)}, {"u": u}, m=m, n=n // 2)["out"]
        return self.machine.local("gelu", {"out": (m, n)}, {"u": u}, size=m * n)["out"]

    def _activate_back(self, u: Tensor, dh: Tensor) -> Tensor:
        m, n = u.shape[2:]
        if self.llama:
            return self.machine.local("silu_mul_back", {"du": (m, n)}, {"u": u, "dh": dh}, m=m, n=n // 2)["du"]
        return self.machine.local("gelu_back", {"du": (m, n)}, {"u": u, "dh": dh}, size=m * n)["du"]

    # --- gradients ---

    def _grad(self, name: str, value: Tensor) -> None:
        held = self.trainer.grads
        held[name] = value if name not in held else self.machine.add(held[name], value)

    def _dvector(self, name: str, value: Tensor) -> None:
        self.dvectors[name] = value if name not in self.dvectors else self.machine.add(self.dvectors[name], value)

    def finish(self) -> None:
        """Sum the gradients of vectors over the group, each block to its position."""
        flat = torch.cat([self.dvectors[name] for name in self.sizes.vectors], -1)
        each = self.trainer.weights["vectors"].shape[-1]
        if self.team.size == 1:
            return self._grad("vectors", flat)
        parts = take(padded(flat, each * self.team.size).unflatten(-1, (self.team.size, each)), self.trainer.order)
        self._grad("vectors", self.machine.run(collective(self.team, "reduce", each), parts=parts)["own"])
