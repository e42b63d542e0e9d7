"""Head groups: the heads, and their rotary pairs, that a column of the mesh holds.

The columns are cut into groups of equal width. A group holds some key-value heads with their query heads, and its
columns divide the rotary pairs, so a score is a sum over the columns of a group. With more groups than key-value heads,
a key-value head is repeated over some groups, which divide its query heads. The padding is at the end: groups without
heads, columns without a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from wafer_triton.errors import MeshError, plain, shown
from wafer_triton.schedule.rounds import Index
from wafer_triton.shape.decoder import DecoderShape


@dataclass(frozen=True)
class HeadGroups:
    """`count` groups of heads on `columns` columns; MeshError for a count that does not fit the model or the columns.

    Rows of a projection are numbered as in its parameter: head by head, of a head the first halves of all rotary pairs,
    then the second. A core has them in that order too.
    """

    shape: DecoderShape
    columns: int
    count: int = 1

    def __post_init__(self) -> None:
        c, most = self.shape, most_groups(self.shape, self.columns)
        object.__setattr__(self, "count", plain(self.count))
        if type(self.count) is not int or not 1 <= self.count <= most:
            columns = (
                "1 column takes 1"
                if self.columns == 1
                else f"{self.columns} columns take a whole number from 1 to {most}"
            )
            held = f"{c.num_attention_heads} query heads on {columns}"
            reason = held if c.rotary else "a program without RoPE has one; leave it out"
            raise MeshError(f"{c.name}: head_groups = {shown(self.count)}, but {reason}")

    @property
    def width(self) -> int:
        """Columns of a group."""
        return self.columns // self.count

    @property
    def kv_heads(self) -> int:
        """Key-value heads of a core."""
        return -(-self.shape.num_key_value_heads // self.count)

    @property
    def query_heads(self) -> int:
        """Return the query heads of a core: those of its key-value heads, or as few of one as the groups allow."""
        total, each = self.shape.num_key_value_heads, self.shape.queries_each
        fits = (few for few in range(1, each + 1) if total * -(-each // few) <= self.count)
        return self.kv_heads * next(fits, each)

    @property
    def pairs(self) -> int:
        """Rotary pairs of each of its heads that a core holds."""
        return -(-(self.shape.head_dim // 2) // self.width)

    @property
    def head_width(self) -> int:
        """Dimensions of each of its heads that a core holds: whole rotary pairs with RoPE."""
        return 2 * self.pairs if self.shape.rotary else -(-self.shape.head_dim // self.columns)

    @cached_property
    def heads_of_group(self) -> dict[str, Index]:
        """[groups, heads of a core]: the query ("q") and key-value ("k", "v") heads of each group, -1 for none."""
        total, each = self.shape.num_key_value_heads, self.shape.queries_each
        group, few = np.arange(self.count)[:, None], self.query_heads // self.kv_heads
        copies = -(-each // few)  # groups that repeat a key-value head, and divide its query heads
        kv = _up_to(group // copies * self.kv_heads + np.arange(self.kv_heads), total)
        own = _up_to(group % copies * few + np.arange(few), each)
        of, query = kv[:, :, None], own[:, None]
        q = np.where((of < 0) | (query < 0), -1, of * each + query).reshape(self.count, -1)
        return {"q": q, "k": kv, "v": kv}

    @cached_property
    def group_of(self) -> Index:
        """[columns]: the group of each column, -1 for one without heads."""
        group = np.arange(self.columns) // self.width
        return np.where(group < int((self.heads_of_group["q"] >= 0).any(1).sum()), group, -1)

    @cached_property
    def pair_of(self) -> Index:
        """[columns, pairs]: the rotary pairs that a column holds, -1 for none."""
        inside = np.arange(self.columns)[:, None] % self.width
        own = _up_to(inside * self.pairs + np.arange(self.pairs), self.shape.head_dim // 2)
        return np.where(self.group_of[:, None] < 0, -1, own)

    def rows(self, which: str) -> Index:
        """[columns, elements of a core]: the rows of projection "q", "k" or "v" that a column holds, -1 for none."""
        heads, low = self.heads_of_group[which][self.group_of][:, :, None, None], self.pair_of[:, None, None]
        dimensions = np.concatenate([low, low + self.shape.head_dim // 2], 2)
        rows = np.where((heads < 0) | (low < 0), -1, heads * self.shape.head_dim + dimensions)
        return rows.reshape(self.columns, -1)

    @property
    def busy_columns(self) -> int:
        """Columns that hold more than padding."""
        return int((self.pair_of >= 0).any(1).sum())


def _up_to(numbers: Index, end: int) -> Index:
    """Return the numbers below `end`, -1 in place of the others."""
    return np.where(numbers < end, numbers, -1)


def most_groups(shape: DecoderShape, columns: int) -> int:
    """Return the most head groups of a model on `columns` columns; without rotary embedding there is one."""
    return min(shape.num_attention_heads, columns) if shape.rotary else 1


def distinct_head_groups(shape: DecoderShape, columns: int) -> tuple[HeadGroups, ...]:
    """Return, for each size of a core's tiles, the most groups that give it: with fewer a sum only goes further."""
    every = (HeadGroups(shape, columns, count) for count in range(1, most_groups(shape, columns) + 1))
    return tuple({(groups.query_heads, groups.kv_heads, groups.pairs): groups for groups in every}.values())
