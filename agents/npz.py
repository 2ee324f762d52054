"""Reads .npz files that others wrote."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from topologies.errors import InvalidFileError
from topologies.files import open_file


def read_arrays(path: Path) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """All arrays of an .npz file by name. Nothing is unpickled. Raises InvalidFileError."""
    try:
        with open_file(path) as file:
            if not zipfile.is_zipfile(file):
                raise InvalidFileError(f"{path}: not an .npz file")
            with np.load(file, allow_pickle=False) as arrays:
                return {key: arrays[key] for key in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InvalidFileError(f"{path}: not an .npz file of plain arrays: {error}") from error
