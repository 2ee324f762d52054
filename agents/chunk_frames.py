"""Chunks as frames between agents, and back."""

from __future__ import annotations

import numpy as np

from agents.sync.messages import ChunkMessage
from agents.sync.payload import ArrayPayload
from agents.wire import Header, ProtocolError

KIND = "chunk"


def chunk_header(wire_name: str, message: ChunkMessage, payload: ArrayPayload) -> Header:
    """The header of a chunk's frame; its payload is the array."""
    return {
        "kind": KIND,
        "job": wire_name,
        "seq": message.seq,
        "version": message.version,
        "part": message.part,
        "chunk": message.chunk,
        "direction": message.direction,
        "src": message.src,
        "tree": message.tree,
        "dtype": payload.array.dtype.name,
    }


def chunk_message(job: str, header: Header, payload: memoryview) -> ChunkMessage:
    """The message of job `job` that a frame carries. ProtocolError when it is none.

    The array is the frame's own memory, read for this message alone, so sums may build up in it.
    """
    try:
        values = np.frombuffer(payload, np.dtype(header["dtype"]))
        numbers = [header[key] for key in ("seq", "version", "part", "chunk", "src", "tree")]
        direction = header["direction"]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"not a chunk: {header}: {error}") from None
    if not all(isinstance(number, int) for number in numbers) or direction not in ("up", "down"):
        raise ProtocolError(f"not a chunk: {header}")
    seq, version, part, chunk, src, tree = numbers
    content = ArrayPayload(values, owned=True)
    return ChunkMessage(job, seq, version, part, chunk, direction, src, tree, content)
