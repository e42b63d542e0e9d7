"""GraphSAGE on the mesh, after Quiver (Tan et al., 2023): a row of cores answers one request with sampled neighbours.

A request is a node. Its class follows from the features of the node, of sampled neighbours, and of theirs. Features
are cut along x by width. Along y `group` rows of cores share a copy of all nodes but the first `hot`, which each row
has. Nodes have numbers from 1 in order of their heat; 0 stands for none.
"""

from contextlib import suppress
from functools import cache

import numpy as np
import torch

from wafer_triton import Builder, Slot, WaferError, account, as_mesh, executor, price, scatter
from wafer_triton.algorithms.gather import gather
from wafer_triton.algorithms.reduce import all_reduce
from wafer_triton.errors import SramError
from wafer_triton.local import cut, local_op


def access(starts, edges, p, fanouts):
    """Return the probability [nodes] that a request reads each node, if it asks for one with probability p [nodes].

    Neighbours of node u are edges[starts[u] : starts[u + 1]]. Draws are taken as independent (Quiver's formula). From
    one node the sum is the expected number of nodes that a request for it reads.
    """
    degree = np.diff(starts)
    for k in fanouts:
        missed = 1 - p
        np.multiply.at(missed, edges, 1 - np.repeat(p * np.minimum(1, k / np.maximum(degree, 1)), degree))
        p = 1 - missed
    return p


def ids_a_pass(cold, rows, misses=0.05):
    """Return how many cold ids a pass takes: by a union bound at most `misses` of all batches need one more.

    `cold` are numbers of cold ids of some requests; a batch has `rows`, and all rows make the passes of the fullest.
    """
    return max(1, next(k for k in range(max(cold) + 1) if rows * np.mean(np.asarray(cold) > k) <= misses))


@local_op(tiles=lambda *, m, k: ((m * k,), (m, 2), (m,)), work=lambda *, m, k: (0, 4 * m * k))
def draw_torch(at, spans, u, *, m, k):
    """at [m, k] = places, from 1, of k different edges of each node, all of them if it has fewer, then 0 for none.

    A node has spans [m, 2], the edges before its first and their number. Each is drawn with the same probability.
    """
    start, degree = cut(spans, m, 2).split(1, -1)
    number = ((torch.arange(k, device=u.device) + cut(u, m, 1)) * degree.clamp(min=k) / k).floor()
    cut(at, m, k).copy_(torch.where(number < degree, start + number + 1, 0))


@local_op(tiles=lambda *, m, k: ((m, 1 + k), (m,), (m, k)), work=lambda *, m, k: (0, m * (1 + k)))
def beside_torch(out, nodes, near, *, m, k):
    """out [m, 1 + k] = each node and its neighbours."""
    cut(out, m, 1 + k).copy_(torch.cat([cut(nodes, m, 1), cut(near, m, k)], -1))


@local_op(tiles=lambda *, m, hot: ((1,), (m,)), work=lambda *, m, hot: (0, m))
def demand_torch(count, ids, *, m, hot):
    """count [1] = how many ids are above `hot`."""
    count.copy_((ids > hot).sum(-1, True))


@local_op(tiles=lambda *, m, k, hot, skip: ((k,), (m,)), work=lambda *, m, k, hot, skip: (0, 2 * m))
def colds_torch(some, ids, *, m, k, hot, skip):
    """some [k] = the ids above `hot` but the first `skip` of them; zeros if there are fewer."""
    at = (ids > hot).cumsum(-1) - 1 - skip
    at = at.where((ids > hot) & (at >= 0) & (at < k), k)
    some.copy_(torch.cat([some, some[..., :1]], -1).zero_().scatter(-1, at, ids)[..., :k])


@local_op(
    tiles=lambda *, m, k, d, hot, skip: ((m, d), (k, d), (m,)), work=lambda *, m, k, d, hot, skip: (0, 2 * m + k * d),
    updates=("x",),
)  # fmt: skip
def fill_torch(x, rows, ids, *, m, k, d, hot, skip):
    """x [m, d] = rows [k, d], at the ids that `colds` lists."""
    at = (ids > hot).cumsum(-1) - 1 - skip
    chosen = ((ids > hot) & (at >= 0) & (at < k))[..., None]
    x, at = cut(x, m, d), at.clamp(0, k - 1)[..., None].expand(*at.shape, d)
    x.copy_(cut(rows, k, d).gather(-2, at).where(chosen, x))


@local_op(
    tiles=lambda *, n, k, d, step=1: ((n, 2 * d), (n, 1 + k, d), (n, 1 + k, step)),
    work=lambda *, n, k, d, step=1: (0, n * (2 + k) * d),
)  # fmt: skip
def halves_torch(out, x, ids, *, n, k, d, step=1):
    """out [n, 2 d] = the first row of x [n, 1 + k, d], and the mean of those others whose ids are not 0."""
    node, near = cut(x, n, 1 + k, d).split((1, k), -2)
    real = (cut(ids, n, 1 + k, step)[..., 1:, :1] > 0).to(x.dtype)
    out = cut(out, n, 2, d)
    out.copy_(torch.cat([node, (near * real).sum(-2, True) / real.sum(-2, True).clamp(min=1)], -2))


@local_op(tiles=lambda *, size: ((size,), (size,)), work=lambda *, size: (0, size), elementwise=True)
def relu_torch(out, x, *, size):
    """out [size] = x, or 0 where x is negative."""
    out.copy_(x.relu())


class Sage:
    """Two layers of GraphSAGE with mean aggregation, of sizes (width, hidden, classes), as schedules on a mesh.

    A copy of the graph, of `nodes` and `edges`, lies on `graph_rows` rows, whose requests are sampled together. A pass
    gathers `ids_a_pass` cold rows for each row of cores (None: all). Raises WaferError where rows are no divisor of the
    mesh's, and for more hot nodes than there are.
    """

    def __init__(
        self, mesh, nodes, edges, sizes, fanouts, *, hot=0, group=None, graph_rows=1, ids_a_pass=None, dtype="fp32"
    ):  # fmt: skip
        self.mesh, self.nodes, self.edges, self.sizes, self.fanouts = as_mesh(mesh), nodes, edges, sizes, fanouts
        (self.rows, self.cols), self.hot, self.graph_rows, self.dtype = self.mesh.shape, hot, graph_rows, dtype
        self.group, (self.near, self.far) = group or self.rows, fanouts
        for what, count in (("group", self.group), ("graph_rows", graph_rows)):
            if not 1 <= count <= self.rows or self.rows % count:
                raise WaferError(f"Sage: {what} = {count}; give a divisor of the {self.rows} rows of cores")
        if not 0 <= hot < nodes:
            raise WaferError(f"Sage: {hot} hot of {nodes} nodes; give from 0 to {nodes - 1}")
        self.ids = (1 + self.near) * (1 + self.far)
        self.ids_a_pass = min(ids_a_pass or self.ids, self.ids)
        self.sampling, self.serving, self.programs = cache(self.sampling), cache(self.serving), {}

    def _builder(self, name):
        """Return a builder with the buffers that stay on the cores."""
        b, share = Builder(self.mesh, name), self.graph_rows * self.cols
        width, hidden, classes = self.sizes
        self.d, self.c = -(-width // self.cols), -(-classes // self.cols)
        tables = {"spans": (2, -(-self.nodes // share)), "edges": (1, -(-self.edges // share))}
        for table, tile in tables.items():
            b.buffer(table, tile, "fp32", "weight")
        features = {"cold": -(-(self.nodes - self.hot) // self.group), "hot": self.hot}
        for table, count in features.items():
            if count:
                b.buffer(table, (self.d, count), self.dtype, "weight")
        b.buffer("w1", (2, self.d, hidden), self.dtype, "weight", pattern="two (x d) h")
        b.buffer("w2", (2 * hidden, self.c), self.dtype, "weight", pattern="h (x c)")
        for table in ("spans", "edges", "cold", "hot"):
            b.buffer(f"first.{table}", (1,), "fp32", "weight")
        return b

    def _neighbours(self, b, nodes, u, near, k):
        """Set `near` [m, k] to sampled neighbours of `nodes` [m]: first their spans are gathered, then the edges."""
        (m,) = b.buffers[nodes].tile
        b.buffer(f"{near}.spans", (m, 2), "fp32")
        b.buffer(f"{near}.at", (m * k,), "fp32")
        b.buffer(near, (m * k, 1), "fp32")
        for table, ids, out in (("spans", nodes, f"{near}.spans"), ("edges", f"{near}.at", near)):
            if table == "edges":
                b.round(b.local("draw", ids, (f"{near}.spans", u), m=m, k=k), label="draw")
            gather(b, table, ids, f"first.{table}", out, "x", label=table)
            all_reduce(b, out, "y", segment=self.graph_rows, label=table)

    def sampling(self):
        """Return the schedule that leaves ids [1 + near, 1 + far] on each row of cores, and their largest `count`."""
        b, n, requests = self._builder("sample"), 1 + self.near, self.graph_rows
        for name, size in (("targets", requests), ("u.near", requests), ("u.far", requests * n)):
            b.buffer(name, (size,), "fp32", "input")
        b.buffer("nodes", (requests * n,), "fp32")
        b.buffer("all ids", (self.ids,), "fp32", "scratch", requests)
        b.buffer("ids", (self.ids,), "fp32", "output")
        b.buffer("count", (1,), "fp32", "output")
        self._neighbours(b, "targets", "u.near", "near", self.near)
        b.round(b.local("beside", "nodes", ("targets", "near"), m=requests, k=self.near), label="near")
        self._neighbours(b, "nodes", "u.far", "far", self.far)
        every = Slot("all ids", None)
        b.round(b.local("beside", every, ("nodes", "far"), m=requests * n, k=self.far), label="far")
        b.round(
            b.local("copy", "ids", Slot("all ids", np.arange(self.rows) % requests, "y"), size=self.ids), label="far"
        )
        b.round(b.local("demand", "count", "ids", m=self.ids, hot=self.hot), label="demand")
        all_reduce(b, "count", "y", op="maximum", label="demand")
        return b.build()

    def serving(self, passes):
        """Return the schedule from ids to `out`, the classes of each row's request, with so many passes of cold ids."""
        b, (m, k, d, n) = self._builder(f"serve in {passes}"), (self.ids, self.ids_a_pass, self.d, 1 + self.near)
        hidden, table = self.sizes[1], "hot" if self.hot else "cold"
        b.buffer("ids", (m,), "fp32", "state")
        for name, tile in {
            "x": (m, d),
            "some rows": (k, d),
            "both": (n, 2 * d),
            "h": (n, hidden),
            "h.both": (2 * hidden,),
        }.items():
            b.buffer(name, tile, self.dtype)
        b.buffer("some", (k,), "fp32")
        b.buffer("sums", (n, hidden), self.dtype)
        b.buffer("out", (1, self.c), "fp32", "output", pattern="(y m) (x c)")
        v = b.buffers[table].tile[1]
        b.round(b.local("lookup", "x", (table, "ids", f"first.{table}"), m=m, d=d, v=v), label="rows at hand")
        for number in range(passes):
            some = {"m": m, "k": k, "hot": self.hot, "skip": number * k}
            b.round(b.local("colds", "some", "ids", **some), label="cold")
            gather(
                b, "cold", "some", "first.cold", "some rows", "y", algorithm="ring", segment=self.group, label="cold"
            )
            b.round(b.local("fill", "x", ("some rows", "ids"), d=d, **some), label="cold")
        b.round(b.local("halves", "both", ("x", "ids"), n=n, k=self.far, d=d), label="layer 1")
        b.round(b.local("gemm", "sums", ("both", "w1"), m=n, k=2 * d, n=hidden), label="layer 1")
        all_reduce(b, "sums", "x", label="layer 1")
        b.round(b.local("relu", "h", "sums", size=n * hidden), label="layer 1")
        b.round(
            b.local("halves", "h.both", ("h", "ids"), n=1, k=self.near, d=hidden, step=1 + self.far), label="layer 2"
        )
        b.round(b.local("gemm", "out", ("h.both", "w2"), m=1, k=2 * hidden, n=self.c), label="layer 2")
        return b.build()

    def load(self, starts, edges, features, w1, w2, order=None, on=None):
        """Place a graph, features [nodes, width] and weights [2, width, hidden], [2 hidden, classes] on the cores.

        `order` [nodes] has the hottest nodes first. Raises SramError where a core does not hold its part.
        """
        order, self.on = np.arange(self.nodes) if order is None else np.asarray(order), on or executor("torch")
        if sorted(order) != list(range(self.nodes)):
            raise WaferError(f"load: order has {len(order)} numbers; give each of {self.nodes} nodes once")
        self.number, b = np.argsort(order) + 1, self._builder("tiles")
        spans = torch.from_numpy(np.stack([starts[:-1], np.diff(starts)])[:, order])
        rows = torch.as_tensor(features)[torch.from_numpy(order)].mT
        tiles, firsts = {}, {"hot": torch.ones(self.rows, self.cols)}
        for name, whole in (("spans", spans), ("edges", torch.from_numpy(self.number[edges])[None])):
            (d, v), shape = b.buffers[name].tile, (self.graph_rows, self.cols)
            whole = torch.nn.functional.pad(whole, (0, shape[0] * shape[1] * v - whole.shape[1]))
            tiles[name] = whole.view(d, *shape, v).movedim(0, 2)
            firsts[name] = 1 + v * torch.arange(shape[0] * shape[1]).view(shape)
        v = b.buffers["cold"].tile[1]
        tiles["cold"] = scatter(rows[:, self.hot :], f"{self.group}x{self.cols}", "(x d) (y v)").tiles
        firsts["cold"] = (1 + self.hot + v * torch.arange(self.group))[:, None].expand(-1, self.cols)
        if self.hot:
            tiles["hot"] = scatter(rows[:, : self.hot], self.mesh, "(x d) v").tiles
        tiles |= {name: scatter(w, self.mesh, b.buffers[name].pattern).tiles for name, w in (("w1", w1), ("w2", w2))}
        tiles |= {f"first.{name}": first[..., None] for name, first in firsts.items()}
        schedule = self.sampling()
        self.serving(1)  # whether it fits
        self.memory = self.on.allocate_all(schedule, [*tiles, "targets", "u.near", "u.far", "ids"])
        for name, tile in tiles.items():
            copies = tile.float().flatten(2).repeat(self.rows // len(tile), 1, 1)
            self.memory[name].copy_(copies)
        return self

    def _run(self, schedule, **given):
        if schedule not in self.programs:
            space = {name: memory for name, memory in self.memory.items() if name in schedule.buffers}
            self.programs[schedule] = self.on.bind(schedule, {}, space)
        program = self.programs[schedule]
        for name, tiles in given.items():
            program.write(name, tiles)
        program.run()
        return program

    def serve(self, targets, u_near, u_far):
        """Return the classes [rows, classes] of nodes `targets` [rows], the sampled nodes, and the number of passes.

        u_near [rows] and u_far [rows, 1 + near] are numbers from 0 on and below 1, by which neighbours are sampled:
        nodes [rows, 1 + near, 1 + far], a node and its neighbours, -1 for none.
        """
        if len(wrong := targets[(targets < 0) | (targets >= self.nodes)]) or len(targets) != self.rows:
            what = f"node {wrong[0]}" if len(wrong) else f"{len(targets)} nodes"
            raise WaferError(f"serve: {what}; give {self.rows} nodes from 0 to {self.nodes - 1}, one a row of cores")
        if not all(((np.asarray(u) >= 0) & (np.asarray(u) < 1)).all() for u in (u_near, u_far)):
            raise WaferError("serve: numbers must be at least 0 and below 1")
        given = {"targets": self.number[targets], "u.near": u_near, "u.far": u_far}
        tiles = {}
        for name, values in given.items():
            each = torch.as_tensor(values).float().reshape(-1, self.graph_rows, self.rows and values[0].size)
            tiles[name] = each.flatten(1).repeat_interleave(self.graph_rows, 0)[:, None].expand(-1, self.cols, -1)
        sampled = self._run(self.sampling(), **tiles)
        passes = -(-int(sampled.read("count")[0, 0]) // self.ids_a_pass)
        ids = sampled.read("ids")[:, 0].long()
        out = self._run(self.serving(passes)).read("out")[:, :, 0].flatten(1)[:, : self.sizes[2]]
        nodes = np.append(np.argsort(self.number), -1)[ids.numpy() - 1]
        return out, nodes.reshape(-1, 1 + self.near, 1 + self.far), passes


def power_law(nodes, pairs, seed=0):
    """Return starts and edges of a graph of `pairs` different pairs of nodes, drawn in proportion to rank^-0.7."""
    random, keys = np.random.default_rng(seed), np.array([], np.int64)
    chance = np.arange(1, nodes + 1) ** -0.7
    while len(keys) < pairs:
        u, v = np.sort(random.choice(nodes, (2, 2 * pairs), p=chance / chance.sum()), 0)
        keys = np.unique(np.append(keys, (u * nodes + v)[u != v]))
    u, v = np.divmod(random.permutation(keys)[:pairs], nodes)
    ends = np.stack([np.append(u, v), np.append(v, u)])
    ends = random.permutation(nodes)[ends]
    ends = ends[:, np.lexsort(ends[::-1])]
    return np.append(0, np.bincount(ends[0], minlength=nodes).cumsum()), ends[1]


def samples(starts, edges, targets, u_near, u_far, fanouts):
    """Return the nodes [rows, 1 + near, 1 + far] that `Sage.serve` samples, -1 for none."""
    nodes = np.asarray(targets)
    for u, k in zip((u_near, u_far), fanouts, strict=True):
        start, degree = starts[nodes][..., None], np.where(nodes < 0, 0, np.diff(starts)[nodes])[..., None]
        number = ((np.arange(k) + u[..., None]) * np.maximum(degree, k) / k).astype(int)
        near = np.where(number < degree, edges[np.minimum(start + number, len(edges) - 1)], -1)
        nodes = np.append(nodes[..., None], near, -1)
    return nodes


def table(starts, edges, sizes=(602, 64, 41), fanouts=(10, 5), side=64, batches=30):
    """Yield a line of counts and predicted cycles for each placement of a graph on side x side cores."""
    nodes, random, requests = len(starts) - 1, np.random.default_rng(0), side * batches
    u = random.integers(0, 1024, (requests, 2 + fanouts[0])) / 1024
    read = samples(starts, edges, random.integers(0, nodes, requests), u[:, 0], u[:, 1:], fanouts).reshape(requests, -1)
    heat, hottest = np.empty(nodes + 1, int), -access(starts, edges, np.full(nodes, 1 / nodes), fanouts)
    heat[np.append(np.argsort(hottest, kind="stable"), -1)] = np.arange(nodes + 1)
    for hot, group in ((0, 64), (512, 64), (1400, 64), (0, 16), (0, 8), (256, 8)):
        cold = ((heat[read] >= hot) & (read >= 0)).sum(1)
        k = ids_a_pass(cold, side)
        passes = np.mean(-(-cold.reshape(batches, side).max(1) // k))
        how = {"hot": hot, "group": group, "ids_a_pass": k, "dtype": "fp16"}
        for graph_rows in (1, 2, 4, 8):  # the fewest that leave room for the features
            sage = Sage(side, nodes, len(edges), sizes, fanouts, graph_rows=graph_rows, **how)
            with suppress(SramError):
                schedules = sage.sampling(), sage.serving(1), sage.serving(2)
                break
        counts = [account(schedule) for schedule in schedules]
        costs = [(price(one).cycles, each.hops, each.link_bytes) for one, each in zip(schedules, counts, strict=True)]
        cycles, hops, link_bytes = np.array([1, 2 - passes, passes - 1]) @ costs
        sram = max(each.sram_peak_bytes for each in counts)
        share = f"{hot} ({1 - cold.sum() / (read >= 0).sum():.0%})"
        yield (
            f"{share:>12}{group:7}{graph_rows:7}{k:5}{passes:8.2f}{costs[0][0]:10,.0f}{cycles:9,.0f}{hops:7,.0f}"
            f"{link_bytes / 1e6:9,.0f}{sram:8,}"
        )


if __name__ == "__main__":
    starts, edges = power_law(60, 200)
    features, w1, w2 = (torch.randn(shape) for shape in ((60, 10), (2, 10, 8), (16, 3)))
    targets, (u_near, *u_far) = np.arange(4), np.random.default_rng(0).integers(0, 1024, (4, 4)) / 1024
    answers = []
    for placed in ({}, {"hot": 12}, {"group": 2}, {"hot": 5, "group": 1, "graph_rows": 2, "ids_a_pass": 3}):
        sage = Sage("4x3", 60, 400, (10, 8, 3), (3, 2), **placed).load(starts, edges, features, w1, w2)
        answers.append(sage.serve(targets, u_near, np.transpose([*u_far, u_near]))[0])
    assert all(torch.equal(answer, answers[0]) for answer in answers)
    print("the same classes by 4 placements; 64 requests for 12,800 nodes on 64 x 64 cores, predicted:")
    print("   hot nodes  group  graph  ids  passes  sampling   cycles   hops  link MB    SRAM")
    print(*table(*power_law(12_800, 113_728)), sep="\n")
