"""A model's parameters as a digest, to see at a glance whether workers agree, and as a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import nn

from agents.npz import read_arrays
from agents.worker.segment import Segment, parse_segment
from topologies.errors import InvalidFileError

SCHEMA: Final = 1
_HEADER: Final = "_stormbed"

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]


def parameters_of(model: nn.Module) -> Arrays:
    """Copies of all parameters by name, in the model's order."""
    return {name: p.detach().cpu().numpy().copy() for name, p in model.named_parameters()}


def digest(parameters: Mapping[str, np.ndarray[Any, np.dtype[Any]]]) -> str:
    """sha256 over names, dtypes, shapes and bytes: equal exactly where every bit of every parameter is."""
    total = hashlib.sha256()
    for name, array in parameters.items():
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def save(path: Path, parameters: Arrays, history: Sequence[Segment], world_size: int) -> None:
    """Writes the parameters with what is needed to recompute them: the segments since the first weights."""
    header = {
        "schema": SCHEMA,
        "world_size": world_size,
        "history": [segment.model_dump(mode="json") for segment in history],
    }
    arrays: dict[str, Any] = {_HEADER: np.array(json.dumps(header)), **parameters}
    with path.open("wb") as file:
        np.savez(file, **arrays)


def load(path: Path) -> tuple[Arrays, list[Segment], int]:
    """Parameters, segments since the first weights, number of workers. Raises InvalidFileError."""
    arrays = read_arrays(path)
    try:
        header = json.loads(str(arrays.pop(_HEADER)))
        if header["schema"] != SCHEMA:
            raise InvalidFileError(f"{path}: schema {header['schema']}, this version reads {SCHEMA}")
        return arrays, [parse_segment(given) for given in header["history"]], int(header["world_size"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidFileError(f"{path}: not a file of parameters: {error}") from error
