"""An experience replay on the mesh, after GEAR (Wang et al., ICML 2023): it inserts, selects, collects trajectories.

A trajectory lies in a slot, in named columns of numbers. Slots are cut along y, numbers along x, so a core has a part
of some trajectories. Which ones are selected is known at run time, but no exchange depends on it: cores that hold none
of them send zeros, or a list that loses.
"""

from functools import cache

import torch

from wafer_triton import Builder, WaferError, account, as_mesh, executor, price, scatter
from wafer_triton.algorithms.collectives import broadcast
from wafer_triton.algorithms.gather import gather
from wafer_triton.algorithms.reduce import all_reduce, reduce
from wafer_triton.local import cut, local_op

HEAD = f"{'':34}rounds  hops   link bytes  cycles    SRAM"


@local_op(tiles=lambda *, n, d, v: ((d, v), (n, d), (n,), (1,)), work=lambda *, n, d, v: (0, n * d), updates=("table",))
def put_torch(table, rows, ids, first, *, n, d, v):
    """Columns ids [n] - first [1] of table [d, v] = rows [n, d]; an id outside of the table is another core's."""
    at = ids - first
    at = at.where((at >= 0) & (at < v), v).long()[..., None, :].expand(*at.shape[:-1], d, n)
    table, rows = cut(table, d, v), cut(rows, n, d).mT
    table.copy_(torch.cat([table, table[..., :1]], -1).scatter(-1, at, rows)[..., :v])


@local_op(tiles=lambda *, v, rows: ((rows,), (v,), (1,)), work=lambda *, v, rows: (0, v + rows))
def share_torch(sums, weights, first, *, v, rows):
    """The sum of weights [v] in sums [rows], at the place of the core's row; zeros elsewhere."""
    sums.zero_().scatter_(-1, (first / v).long(), weights.sum(-1, True))


@local_op(
    tiles=lambda *, n, v, rows: ((n,), (rows,), (v,), (1,), (n,)),
    work=lambda *, n, v, rows: (0, v + rows + n * v.bit_length()),
)
def pick_torch(ids, sums, weights, first, u, *, n, v, rows):
    """ids [n] = the slots at u [n] of the sum of all weights, where they are the core's; zeros elsewhere.

    A row's interval ends where the next one's begins, so rounding leaves no gap: each u below 1 is in one interval.
    """
    ends = torch.cat([sums[..., :1] * 0, sums.cumsum(-1)], -1)
    target, place = u * ends[..., -1:], (first / v).long()
    start, end = ends.gather(-1, place), ends.gather(-1, place + 1)
    passed = ((start + weights.cumsum(-1))[..., None, :] <= target[..., None]).sum(-1)
    last = (torch.arange(v, device=u.device) * (weights > 0)).amax(-1, keepdim=True)
    ids.copy_(torch.where((start <= target) & (target < end), first + passed.minimum(last), 0))


@local_op(tiles=lambda *, size: ((size,),) * 3, work=lambda *, size: (0, size), elementwise=True)
def race_torch(keys, weights, times, *, size):
    """keys [size] = weights / times. If times are exponential, keys rank slots as draws without replacement do."""
    keys.copy_(torch.where(weights > 0, weights / times, 0))


@local_op(tiles=lambda *, n, v: ((2, n), (v,), (1,)), work=lambda *, n, v: (0, v * v.bit_length()))
def best_torch(best, keys, first, *, n, v):
    """best [2, n] = the largest keys [v] and their slots, lower slots first; keys of -1 if there are fewer."""
    at = keys.argsort(stable=True, dim=-1, descending=True)[..., :n]
    best = cut(best, 2, n).fill_(-1)
    best[..., : at.shape[-1]] = torch.stack([keys.gather(-1, at), first + at], -2)


@local_op(tiles=lambda *, size: ((size,),) * 3, work=lambda *, size: (0, 2 * size), elementwise=True)
def merge_torch(best, a, b, *, size):
    """The best half of two sorted lists [2, size / 2] of keys and slots."""
    lists = torch.cat([cut(a, 2, size // 2), cut(b, 2, size // 2)], -1)
    at = lists[..., 1, :].argsort(stable=True, dim=-1)  # lower slots first, of equal keys too
    at = at.gather(-1, lists[..., 0, :].gather(-1, at).argsort(stable=True, dim=-1, descending=True))
    best.copy_(lists.gather(-1, at[..., None, : size // 2].expand(*at.shape[:-1], 2, -1)).flatten(-2))


class Replay:
    """A ring of `capacity` slots for trajectories with these columns, {name: numbers}, each with a weight.

    All numbers are fp32. Raises SramError, as its methods do, where a core does not hold its part.
    """

    def __init__(self, mesh, capacity, columns, on=None):
        self.mesh, self.capacity, self.columns = as_mesh(mesh), capacity, dict(columns)
        self.rows, self.cols = self.mesh.shape
        self.on, self.slots = on or executor("torch"), -(-capacity // self.rows)
        self.next = self.filled = 0
        schedules = (self.insertion, self.selection, self.collection)
        self.insertion, self.selection, self.collection = map(cache, schedules)  # each is built once
        self.programs, insert = {}, self.insertion(1)
        self.memory = self.on.allocate_all(insert, ["first", "weights", *self.columns])
        first = torch.arange(self.rows).float()[:, None, None] * self.slots
        self.memory["first"].copy_(first.expand(-1, self.cols, 1))

    def _builder(self, name, columns):
        b = Builder(self.mesh, name)
        b.buffer("first", (1,), "fp32", "cache", pattern="(y f)")
        b.buffer("weights", (1, self.slots), "fp32", "cache", pattern="w (y v)")
        for column, width in columns.items():
            b.buffer(column, (-(-width // self.cols), self.slots), "fp32", "cache", pattern="(x d) (y v)")
        return b

    def insertion(self, n):
        """Return the schedule that hands n trajectories down from the first row of cores; each keeps what is its."""
        b = self._builder(f"insert {n}", self.columns)
        new = {column: f"new {column}" for column in ("weights", *self.columns)}
        b.buffer("ids", (n,), "fp32", "input", pattern="n")
        for column, rows in new.items():
            cut_by = "n (x d)" if column != "weights" else "n d"
            b.buffer(rows, (n, b.buffers[column].tile[0]), "fp32", "input", pattern=cut_by)
        broadcast(b, ["ids", *new.values()], "y", 0)
        for column, rows in new.items():
            d = b.buffers[column].tile[0]
            b.round(b.local("put", column, (rows, "ids", "first"), n=n, d=d, v=self.slots), label="put")
        return b.build()

    def selection(self, kind, n):
        """Return the schedule that leaves n slots on all cores, in `ids` ("weighted") or `best` ("top", "distinct").

        "weighted" adds the rows' sums, each at its place of a vector, so each core knows all prefixes.
        """
        b, sizes = self._builder(f"{kind} {n}", {}), {"n": n, "v": self.slots}
        if kind == "weighted":
            b.buffer("u", (n,), "fp32", "input", pattern="n")
            b.buffer("sums", (self.rows,), "fp32", "output", pattern="r")
            b.buffer("ids", (n,), "fp32", "output", pattern="n")
            b.round(b.local("share", "sums", ("weights", "first"), v=self.slots, rows=self.rows), label="sums")
            all_reduce(b, "sums", "y", label="sums")
            b.round(b.local("pick", "ids", ("sums", "weights", "first", "u"), rows=self.rows, **sizes), label="pick")
            all_reduce(b, "ids", "y", label="pick")
            return b.build()
        keys = "weights" if kind == "top" else b.like("keys", "weights")
        if kind == "distinct":
            b.buffer("times", (1, self.slots), "fp32", "input", pattern="w (y v)")
            b.round(b.local("race", keys, ("weights", "times"), size=self.slots), label="race")
        b.buffer("best", (2, n), "fp32", "output", pattern="two n")
        b.round(b.local("best", "best", (keys, "first"), **sizes), label="sort")
        all_reduce(b, "best", "y", op="merge", label="merge")
        return b.build()

    def collection(self, n, to):
        """Return the schedule that collects n trajectories on all rows of cores ("all") or on one ("row").

        It reduces by a K-tree or by chains, whichever is predicted to take fewer cycles.
        """
        choices = []
        for tree in ({"groups": None}, {"groups": ()}) if to == "all" else ({}, {"algorithm": "pipeline"}):
            b = self._builder(f"collect {n} to {to}", self.columns)
            b.buffer("ids", (n,), "fp32", "input", pattern="n")
            for column in self.columns:
                (d, v), out = b.buffers[column].tile, f"{column} out"
                b.buffer(out, (n, d), "fp32", "output", pattern="n (x d)")
                if to == "all":
                    gather(b, column, "ids", "first", out, "y", **tree)
                else:
                    b.round(b.local("lookup", out, (column, "ids", "first"), m=n, d=d, v=v), label="collect")
                    root = reduce(b, out, "y", label="collect", **tree)
            choices.append((b.build(), 0 if to == "all" else root))
        return min(choices, key=lambda choice: price(choice[0]).cycles)

    def _program(self, schedule, **given):
        """Return a program over the replay's memory, with given tensors cut by the buffers' patterns."""
        if schedule.name not in self.programs:
            others = [b.name for b in schedule.buffers.values() if b.given and b.name not in self.memory]
            space = self.memory | self.on.allocate_all(schedule, others)
            held = {name: memory for name, memory in space.items() if name in schedule.buffers}
            self.programs[schedule.name] = self.on.bind(schedule, {}, held)
        program = self.programs[schedule.name]
        for name, tensor in given.items():
            pattern = schedule.buffers[name].pattern
            program.write(name, scatter(torch.as_tensor(tensor).float(), self.mesh, pattern).tiles)
        return program

    def insert(self, weights, **columns):
        """Put trajectories [n, numbers], by columns, and their weights [n], in the next n slots; return these [n]."""
        weights, n = torch.as_tensor(weights, dtype=torch.float32), len(weights)
        if n > self.capacity:
            raise WaferError(f"insert: {n} trajectories for {self.capacity} slots; insert at most so many at once")
        if len(wrong := weights[~((weights >= 0) & weights.isfinite())]):
            raise WaferError(f"insert: weight {float(wrong[0])}; give numbers of at least 0")
        for name, width in self.columns.items():
            shape = tuple(columns[name].shape) if name in columns else None
            if shape != (n, width):
                raise WaferError(f"insert: column {name!r} is {shape}; give [{n}, {width}] numbers")
        ids = (self.next + torch.arange(n)) % self.capacity
        new = {f"new {name}": columns[name] for name in self.columns} | {"new weights": weights[:, None]}
        self._program(self.insertion(n), ids=ids, **new).run()
        self.next, self.filled = (self.next + n) % self.capacity, min(self.filled + n, self.capacity)
        return ids

    def select(self, kind, n, numbers=None):
        """Return n slots [n] by "uniform", "weighted", "distinct" (weighted without replacement) or "top" weights.

        `numbers` are [n] from 0 on and below 1 for the first two, and [capacity] exponential ones for "distinct".
        """
        if kind not in ("uniform", "weighted", "distinct", "top"):
            raise WaferError(f"select: {kind!r}; choose one of uniform, weighted, distinct, top")
        if not self.filled or (kind in ("distinct", "top") and n > self.filled):
            raise WaferError(f"select: {n} of {self.filled} trajectories; insert more, or select fewer")
        if kind in ("uniform", "weighted") and not ((numbers >= 0) & (numbers < 1)).all():
            raise WaferError("select: numbers must be at least 0 and below 1")
        if kind == "distinct" and not (numbers > 0).all():
            raise WaferError("select: numbers must be exponential ones, above 0")
        if kind == "uniform":
            return (numbers * self.filled).long()
        if kind == "weighted":
            program = self._program(self.selection(kind, n), u=numbers)
            program.run()
            if not program.read("sums")[0, 0].sum() > 0:
                raise WaferError("select: all weights are 0; insert one above 0, or select uniformly")
            return program.read("ids")[0, 0].long()
        program = self._program(self.selection(kind, n), **({"times": numbers[None]} if kind == "distinct" else {}))
        program.run()
        keys, ids = program.read("best")[0, 0]
        if kind == "distinct" and (count := int((keys > 0).sum())) < n:
            raise WaferError(f"select: {n} distinct of {count} trajectories with a weight above 0; select fewer")
        return ids.long()

    def collect(self, ids, to="all"):
        """Return the trajectories of slots `ids` [n], {column: [n, numbers]}, from all cores or from one row."""
        if len(wrong := ids[(ids < 0) | (ids >= self.filled)]):
            raise WaferError(f"collect: slot {int(wrong[0])}; give slots from 0 to {self.filled - 1}, which are filled")
        schedule, root = self.collection(len(ids), to)
        program = self._program(schedule, ids=ids)
        program.run()
        rows = {name: program.read(f"{name} out")[root].transpose(0, 1).flatten(1) for name in self.columns}
        return {name: values[:, : self.columns[name]] for name, values in rows.items()}


def table(replay, n):
    """Yield a line of counts and predicted cycles for each schedule of a batch of n."""
    schedules = {
        "insert": replay.insertion(n), "weighted selection": replay.selection("weighted", n),
        "top": replay.selection("top", n), "weighted, without replacement": replay.selection("distinct", n),
        "collect to all": replay.collection(n, "all")[0], "collect to one row of cores": replay.collection(n, "row")[0],
    }  # fmt: skip
    for name, schedule in schedules.items():
        counts = account(schedule)
        line = f"{name:34}{counts.rounds:6}{counts.hops:6}{counts.link_bytes:13,}{price(schedule).cycles:8,.0f}"
        yield f"{line}{counts.sram_peak_bytes:8,}"


if __name__ == "__main__":
    replay = Replay("4x6", 10, {"observations": 7, "reward": 1})
    observations, rewards = torch.randn(12, 7), torch.rand(12, 1)
    for some in (slice(0, 8), slice(8, 12)):  # the last two overwrite the first two slots
        replay.insert(rewards[some, 0], observations=observations[some], reward=rewards[some])
    chosen = replay.select("distinct", 3, torch.empty(10).exponential_())
    latest = torch.tensor([10, 11, *range(2, 10)])
    torch.testing.assert_close(replay.collect(chosen, "row")["observations"], observations[latest[chosen]])
    print(
        "collected what was inserted; 2,048 trajectories of 4,096 numbers on 64 x 64 cores, a batch of 32, predicted:"
    )
    print(HEAD, *table(Replay(64, 2048, {"numbers": 4096}), 32), sep="\n")
