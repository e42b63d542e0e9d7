"""An all-reduce of one's own: partial sums flow from both ends to the middle of a line, which then multicasts the sum.

`wafer-triton compare docs/examples/own_all_reduce.py:two_sided` puts it beside the built-in ones, and `wafer-triton
draw` with the same words and `--out page.html` writes a page to walk through it.
"""

from wafer_triton import Builder, Cores, Intent, Mesh, account, check, price
from wafer_triton.algorithms.collectives import broadcast


def summed(tiles):
    """Return the sum over each row of cores, on all of its cores."""
    return {"x": tiles["x"].sum(1, keepdim=True).expand_as(tiles["x"])}


def two_sided(rows=4, cols=8):
    """Return a sum over the rows' tiles of 16 numbers, and its intent."""
    b, middle = Builder(Mesh(rows, cols), "two-sided all-reduce"), cols // 2
    b.buffer("x", (16,), "fp32", "output")
    inboxes = [b.buffer(name, (16,), "fp32") for name in ("from_left", "from_right")]
    for step in range(middle):
        steps = []
        for inbox, sender, way in zip(inboxes, (step, cols - 1 - step), (1, -1), strict=True):
            if sender != middle:
                steps.append(b.exchange("x", "x", inbox, send=[sender], recv=[sender + way]))
                steps.append(b.local("add", "x", ("x", inbox), Cores("x", steps[-1].moves.recv), size=16))
        b.round(*steps, label="inwards")
    broadcast(b, "x", "x", middle)
    return b.build(), Intent(given={"x": "(y r) (x k)"}, result={"x": {"r": "y"}}, reference=summed)


if __name__ == "__main__":
    schedule, intent = two_sided()
    print(check(schedule, intent))
    print(f"{account(schedule).hops} hops; predicted on the wafer: {price(schedule).ends}")
