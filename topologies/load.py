"""From a name or a file to a Topology.

One door for all of them: a name of the library (`netstorm-9`), one made by rule (`ring-6`, `waxman-20-1`),
a topology file (YAML or JSON), somebody else's file (GML, GraphML, node-link JSON, SNDlib's native text),
`topohub:GROUP/NAME`.
Behind any of them `?rate=...&delay=...` changes what it says (topologies.options).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topologies.errors import InvalidFileError, UsageError, nearest
from topologies.files import Document, read_yaml
from topologies.formats import SUFFIXES, TOPOHUB, read_graph, read_topohub
from topologies.generate import FORMS, generate, is_generated
from topologies.graph import to_topology
from topologies.model import Topology
from topologies.options import Options

LIBRARY = Path(__file__).parent / "library"

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A topology and what had to be changed to make it one."""

    topology: Topology
    warnings: tuple[str, ...] = ()


def list_library() -> tuple[str, ...]:
    """The names of the topologies that come with the project, sorted."""
    return tuple(sorted(file.stem for file in LIBRARY.glob("*.yaml")))


def load_topology(name_or_path: str | Path) -> Topology:
    """A topology by its name or from its file; warnings go to this module's logger.

    A plain word is looked up in the library first, then as a file; what has a slash or a suffix is a file.
    Raises InvalidFileError naming the file, the line, the key and what to do, and UsageError for a name that
    cannot be.
    """
    loaded = open_topology(name_or_path)
    for warning in loaded.warnings:
        LOG.warning("%s", warning)
    return loaded.topology


def open_topology(name_or_path: str | Path) -> Loaded:
    """As `load_topology`, but hands the warnings to the caller."""
    base, text = split_options(name_or_path)
    options = Options.parse(text) if text else Options()
    warnings: list[str] = []
    topology = _load(base, options, warnings.append)
    return Loaded(options.apply(topology), tuple(warnings))


def split_options(name_or_path: str | Path) -> tuple[str | Path, str]:
    """A name and what stands behind its `?`; a path of that very name, or a Path, has no options."""
    if isinstance(name_or_path, Path) or "?" not in name_or_path or _exists(name_or_path):
        return name_or_path, ""
    base, _, options = name_or_path.partition("?")
    if not options:
        raise UsageError(f"{name_or_path!r} has no option behind its ?", hint="for example ?rate=100mbit")
    return base, options


def is_topology_name(name: str) -> bool:
    """Whether a name says by itself that it is a topology: no file has to be read for it."""
    base = name.partition("?")[0]
    return (
        base in list_library()
        or is_generated(base)
        or base.startswith(TOPOHUB)
        or base.lower().endswith(SUFFIXES)
    )


def relative_to(folder: Path, name: str) -> str:
    """The name as seen from elsewhere: the path of a file that stands in `folder` is put before it."""
    base, text = split_options(name)
    is_file = ("/" in str(base) or Path(base).suffix != "") and not str(base).startswith(TOPOHUB)
    if is_file and _exists(folder / base):
        base = str(folder / base)
    return f"{base}?{text}" if text else str(base)


def topology_from_dict(data: dict[str, Any], source: str = "topology") -> Topology:
    """A topology from plain data, such as `Topology.to_dict()` gives; errors name `source`."""
    return Document(source, data).validate(Topology)


def _exists(path: str | Path) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # a name that no file can have
        return False


def _load(base: str | Path, options: Options, warn: Callable[[str], None]) -> Topology:
    if isinstance(base, str):
        if base.startswith(TOPOHUB):
            return to_topology(read_topohub(base, warn), options, warn)
        if base in list_library():
            return _own(read_yaml(LIBRARY / f"{base}.yaml"), options)
        if is_generated(base):
            return _own(Document(base, generate(base)), options)
        if re.fullmatch(r"[\w-]+", base) and not _exists(base):
            known = (*list_library(), *FORMS)
            raise InvalidFileError(
                f"there is no topology {base!r}, neither in the library nor as a file",
                hint=nearest(base, known),
            )
    graph = read_graph(base, warn)
    if graph is not None:
        return to_topology(graph, options, warn)
    return _own(read_yaml(base), options)


def _own(document: Document, options: Options) -> Topology:
    topology = document.validate(Topology)
    if options.default_rate is not None:
        raise UsageError(
            f"every link of {topology.name} has a rate, so default-rate changes nothing",
            hint="write rate=... to replace them",
        )
    return topology
