"""The local products of a prefill layer alone: they rank the ways to lay a layer out, and bound how fast it can be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from wafer_triton.cost.constants import Constants
from wafer_triton.cost.phases import Product
from wafer_triton.cost.price import product_cycles
from wafer_triton.local import find
from wafer_triton.schedule.block import Block
from wafer_triton.schedule.heads import distinct

WIDEST = 100  # columns of a head group, of which prefill has several, unless their number is given


def prefill_head_groups(block: Block, count: int | None = None) -> list[Block]:
    """Return a prefill block with each number of head groups that is tried, or with `count`."""
    columns = block.mesh.shape[1]
    if count is not None:
        return [in_prefill(block, min(count, columns) if type(count) is int else count)]
    kinds = distinct(block.shape, columns)
    return [in_prefill(block, kind.count) for kind in kinds if kind.count == 1 or kind.width <= WIDEST]


def in_prefill(block: Block, count: int) -> Block:
    """Return statistics of a head group go by chains, whose routes the sums of its scores have already."""
    return replace(block, head_groups=count, head_tree=None if count == 1 else ())


def prefill_products(block: Block, tokens: int) -> list[Product]:
    """One local product of each kind of a prefill layer of `tokens` tokens a row: a mesh of P x P does P of each."""
    return [product for each in _by_kind(block, tokens).values() for product in each]


def _by_kind(block: Block, tokens: int) -> dict[str, list[Product]]:
    """Return the products by the kind of block; of attention, products of tokens with tokens are "pairs"."""
    heads, head, d = block.query_heads, block.head, block.share(block.shape.hidden_size, "x")
    sizes = {
        "attention": [(tokens, d, block.qkv, 1)],
        "pairs": [(tokens, head, tokens, heads), (tokens, tokens, head, heads)],
        "out": [(tokens, heads * head, d, 1)],
    }
    if "ffn" in block.shape.layers_of:
        f = block.share(block.shape.intermediate_size, "x")
        sizes["ffn"] = [(tokens, d, 2 * f, 1), (tokens, f, d, 1)]
    e, product = block.shape.experts, find("expert_gemm").product
    if e is not None and product is not None:
        f = block.share(e.width, "x")
        run = {"m": tokens, "per_token": e.per_token, "experts": e.tiles}
        sizes["experts"] = [product(**run, k=k, n=n) for k, n in ((d, 2 * f), (f, d))]
    return {kind: [Product(*size, block.dtype) for size in each] for kind, each in sizes.items()}


def region_products(block: Block) -> list[Product]:
    """Return the products of a pass of experts in regions: one of each kind, of which every core does one a turn."""
    e, regions, product = block.shape.experts, block.expert_regions, find("expert_gemm").product
    assert e is not None and regions is not None and product is not None, "a block whose experts have regions"
    size, d = block.mesh.shape[0] // regions.side, regions.side * block.share(block.shape.hidden_size, "x")
    rows, f = regions.side * regions.capacity, -(-e.width // size)
    each = (product(m=rows, per_token=1, experts=regions.held(e), k=k, n=n) for k, n in ((d, 2 * f), (f, d)))
    return [Product(*sizes, block.dtype) for sizes in each]


def sum_cycles(products: Iterable[Product], c: Constants) -> float:
    """Return cycles of products in rounds, which hide the messages beside them."""
    return sum(product_cycles(product, c, True) for product in products)


def least_cycles(block: Block, tokens: int, c: Constants, spread: bool) -> float:
    """Return cycles that the layers of prefill take at least for `tokens` tokens a row, at once or in chunks.

    They are the cycles of the products. Tokens of a chunk meet the tokens up to their own chunk alone, which are half
    of all pairs at least. Experts count where each is `spread` over the whole mesh, with as many tokens as all chunks
    have together if a chunk gives some experts no token. A decoder with parts of the user's own may take none.
    """
    if block.shape.variant is not None:
        return 0.0
    products, layers = _by_kind(block, tokens), block.shape.num_hidden_layers
    times = block.shape.layers_of | {"pairs": layers / 2, "out": layers}
    if "experts" in products:
        few = [replace(product, m=max(1, product.m - 1)) for product in products["experts"]]
        products["experts"] = few if spread else []
    return block.mesh.shape[0] * sum(sum_cycles(each, c) * times[kind] for kind, each in products.items())
