"""From tensors to chunks, and from chunks to trees.

The unit that travels is a chunk: a contiguous slice of one tensor, at most C elements. Which tree carries it
follows from the plan's shares, by one of three deterministic procedures, so every site computes the same table
and none is sent around:

* `allocate` ("quota"): the quota and pointer procedure of NetStorm's public code (kvstore_dist.h:
  EncodeDefaultKey, TaskDivisionUpdate);
* `cut_smoothly` ("smooth"): exact shares, interleaved in proportion (own);
* `place_keys` ("keys"): small tensors whole on one tree, by a hash, large ones split evenly over all, as MXNet's
  parameter server places them (kvstore_dist.h: EncodeDefaultKey).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from topologies.errors import StormbedError

# Products of floats that should be whole come out a few units in the last place high; rounding those up would
# give a tree one element too many. Small enough that all trees together never lose an element (below 1e12
# elements).
_SLACK = 1e-12


@dataclass(frozen=True, slots=True)
class Chunk:
    """part, offset, size: where its elements are; index: number within the collective;
    tree: its index in the plan; position: how far through the collective it is due, from 0 to 1 (an order of
    links by slack looks at it).
    """

    part: int
    index: int
    offset: int
    size: int
    tree: int
    position: float = field(default=0.0, compare=False)


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
    total = sum(sizes)
    quota = quotas(weights, total) if total else ()
    assigned = [0] * len(weights)
    pointer = done = 0
    table: list[Chunk] = []
    for part, size in enumerate(sizes):
        for offset, length in pieces(size, chunk_elements):
            while assigned[pointer] >= quota[pointer]:
                pointer = (pointer + 1) % len(weights)
            table.append(Chunk(part, len(table), offset, length, pointer, (done + length / 2) / total))
            assigned[pointer] += length
            done += length
            pointer = (pointer + 1) % len(weights)
    return tuple(table)


@lru_cache(maxsize=256)
def on_one_tree(sizes: tuple[int, ...], chunk_elements: int, tree: int) -> tuple[Chunk, ...]:
    """The same pieces in the same order, all on one tree."""
    total = sum(sizes)
    done = 0
    table: list[Chunk] = []
    for part, size in enumerate(sizes):
        for offset, length in pieces(size, chunk_elements):
            table.append(Chunk(part, len(table), offset, length, tree, (done + length / 2) / total))
            done += length
    return tuple(table)


@lru_cache(maxsize=256)
def cut_smoothly(
    sizes: tuple[int, ...], chunk_elements: int, weights: tuple[float, ...]
) -> tuple[Chunk, ...]:
    """Cut tensors of `sizes` elements so that each tree gets its exact share, rounded to one element.

    Shares of the total M by cumulative rounding: tree k ends at floor(M (w_0 + .. + w_k) / W + 1/2). A share
    of S elements becomes q = ceil(S/C) nearly equal pieces, piece j at position (j + 1/2)/q. All pieces in
    order of (position, tree) are the chunks, laid out front to back: smooth weighted round robin. A piece
    over several tensors is split where they meet, so each tensor costs at most one more chunk.
    """
    if chunk_elements < 1:
        raise StormbedError(f"a chunk of {chunk_elements} elements is impossible", hint="use at least 1")
    whole = math.fsum(weights)
    if not whole > 0 or any(weight < 0 for weight in weights):
        raise StormbedError(f"weights {list(weights)} must not be negative, and one must be positive")
    total = sum(sizes)
    ranked: list[tuple[float, int, int]] = []
    below = 0
    for tree in range(len(weights)):
        end = math.floor(total * (math.fsum(weights[: tree + 1]) / whole) + 0.5)
        share, below = end - below, end
        count = -(-share // chunk_elements)
        for j in range(count):
            size = share * (j + 1) // count - share * j // count
            ranked.append(((j + 0.5) / count, tree, size))
    ranked.sort()
    table: list[Chunk] = []
    part = offset = 0
    for position, tree, size in ranked:
        while size:
            while offset == sizes[part]:
                part, offset = part + 1, 0
            length = min(size, sizes[part] - offset)
            table.append(Chunk(part, len(table), offset, length, tree, position))
            size, offset = size - length, offset + length
    return tuple(table)


def server_of_key(key: int, servers: int) -> int:
    """The server of a small tensor: MXNet's (key * 9973) mod servers, sizes not looked at."""
    return key * 9973 % servers


def split_evenly(size: int, servers: int) -> tuple[int, ...]:
    """The contiguous parts of a large tensor, one a server: part i ends at size/servers (i + 1), rounded half up."""
    ends = [(2 * size * k + servers) // (2 * servers) for k in range(servers + 1)]
    return tuple(end - begin for begin, end in itertools.pairwise(ends))


@lru_cache(maxsize=256)
def place_keys(
    sizes: tuple[int, ...], chunk_elements: int, servers: int, big_array: int, first_key: int = 0
) -> tuple[Chunk, ...]:
    """Give tensors to servers (the trees of a plan) as MXNet does, and cut them into chunks.

    Args:
        big_array: MXNET_KVSTORE_BIGARRAY_BOUND, in elements. Below it a tensor goes whole to the server of its
            key; from it on every server gets an equal part.
        first_key: the key of the first tensor; the others count on from it.
    """
    total = sum(sizes)
    done = 0
    table: list[Chunk] = []
    for part, size in enumerate(sizes):
        if size < big_array:
            shares = {server_of_key(first_key + part, servers): size}
        else:
            shares = dict(enumerate(split_evenly(size, servers)))
        begin = 0
        for tree, share in shares.items():
            for offset, length in pieces(share, chunk_elements):
                table.append(Chunk(part, len(table), begin + offset, length, tree, (done + length / 2) / total))
                done += length
            begin += share
    return tuple(table)
