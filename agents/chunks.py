"""From tensors to chunks, and from chunks to trees.

The unit that travels is a chunk: a contiguous slice of one tensor, at most C elements. Which tree carries it
follows from the plan's shares by the quota and pointer procedure of NetStorm's public code (kvstore_dist.h:
EncodeDefaultKey, TaskDivisionUpdate). The procedure is deterministic, so every site computes the same table
and none is sent around.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from topologies.errors import StormbedError

# Products of floats that should be whole come out a few units in the last place high; rounding those up would
# give a tree one element too many. Small enough that all trees together never lose an element (below 1e12
# elements).
_SLACK = 1e-12


@dataclass(frozen=True, slots=True)
class Chunk:
    """part, offset, size: where its elements are; index: number within the collective;
    tree: its index in the plan.
    """

    part: int
    index: int
    offset: int
    size: int
    tree: int


def pieces(size: int, chunk_elements: int) -> Iterator[tuple[int, int]]:
    """(offset, size) of the ceil(size/C) pieces of a tensor: all full except the last."""
    if chunk_elements < 1:
        raise StormbedError(f"a chunk of {chunk_elements} elements is impossible", hint="use at least 1")
    for offset in range(0, size, chunk_elements):
        yield offset, min(chunk_elements, size - offset)


def quotas(weights: Sequence[float], total: int) -> tuple[int, ...]:
    """quota[i] = ceil(weights[i] / sum(weights) * total) elements; their sum is at least `total`."""
    whole = math.fsum(weights)
    if not whole > 0 or any(weight < 0 for weight in weights):
        raise StormbedError(f"weights {list(weights)} must not be negative, and one must be positive")
    exact = (weight * total / whole for weight in weights)
    return tuple(math.ceil(x * (1 - _SLACK)) for x in exact)


@lru_cache(maxsize=256)
def allocate(sizes: tuple[int, ...], chunk_elements: int, weights: tuple[float, ...]) -> tuple[Chunk, ...]:
    """Cut tensors of `sizes` elements into chunks and give each to a tree, in proportion to `weights`.

    In tensor order, chunk after chunk: a pointer goes round the trees, skips those whose quota is met, gives
    the chunk to the tree it stands at and moves on. A tree exceeds its quota by less than one chunk; a tree
    of weight 0 gets nothing.
    """
    quota = quotas(weights, sum(sizes)) if any(sizes) else ()
    assigned = [0] * len(weights)
    pointer = 0
    table: list[Chunk] = []
    for part, size in enumerate(sizes):
        for offset, length in pieces(size, chunk_elements):
            while assigned[pointer] >= quota[pointer]:
                pointer = (pointer + 1) % len(weights)
            table.append(Chunk(part, len(table), offset, length, pointer))
            assigned[pointer] += length
            pointer = (pointer + 1) % len(weights)
    return tuple(table)


@lru_cache(maxsize=256)
def on_one_tree(sizes: tuple[int, ...], chunk_elements: int, tree: int) -> tuple[Chunk, ...]:
    """The same pieces in the same order, all on one tree."""
    table: list[Chunk] = []
    for part, size in enumerate(sizes):
        for offset, length in pieces(size, chunk_elements):
            table.append(Chunk(part, len(table), offset, length, tree))
    return tuple(table)
