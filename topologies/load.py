"""From a name or a file to a Topology."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from topologies.errors import InvalidFileError, nearest
from topologies.files import Document, read_yaml
from topologies.model import Topology

LIBRARY = Path(__file__).parent / "library"


def list_library() -> tuple[str, ...]:
    """The names of the topologies that come with the project, sorted."""
    return tuple(sorted(file.stem for file in LIBRARY.glob("*.yaml")))


def load_topology(name_or_path: str | Path) -> Topology:
    """A topology of the library by its name, or one from a YAML or JSON file.

    A plain word is looked up in the library first, then as a file; what has a slash or a suffix is a file.
    Raises InvalidFileError naming the file, the line, the key and what to do.
    """
    if isinstance(name_or_path, str) and re.fullmatch(r"[\w-]+", name_or_path):
        if name_or_path in list_library():
            return read_yaml(LIBRARY / f"{name_or_path}.yaml").validate(Topology)
        if not Path(name_or_path).exists():
            raise InvalidFileError(
                f"there is no topology {name_or_path!r}, neither in the library nor as a file",
                hint=nearest(name_or_path, list_library()),
            )
    return read_yaml(name_or_path).validate(Topology)


def topology_from_dict(data: dict[str, Any], source: str = "topology") -> Topology:
    """A topology from plain data, such as `Topology.to_dict()` gives; errors name `source`."""
    return Document(source, data).validate(Topology)
