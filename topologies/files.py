"""Reading YAML files strictly, with errors that name the file, the line, the key and the fix.

Used for every kind of file the project reads. Plain YAML forgives too much: it keeps the last of two
equal keys and unfolds nested aliases without end.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from topologies.errors import InvalidFileError, nearest
from topologies.validation import KeyPath, Model, Unfit, fit, keys_of, kind_of, show

MAX_BYTES = 1_000_000
MAX_VALUES = 200_000
MAX_DEPTH = 50

_OFFERED = (".yaml", ".yml", ".json", ".gml", ".graphml", ".csv")
"""Files with these suffixes are offered when a name is misspelt."""


class Document:
    """The contents of one file and where each key stands in it.

    `data` is plain maps, lists and scalars; `source` is how errors name the file.
    """

    def __init__(self, source: str, data: Any, node: yaml.Node | None = None) -> None:
        self.source = source
        self.data = data
        self._node = node

    def error(self, path: KeyPath, message: str, *, hint: str = "") -> InvalidFileError:
        """An error about the key at `path`, or about the nearest existing one above it."""
        line = self._line(path)
        where = f"{self.source}, line {line}" if line else self.source
        return InvalidFileError(f"{where}: {show(path) + ': ' if path else ''}{message}", hint=hint)

    def validate(self, model: type[Model]) -> Model:
        """The contents as a pydantic model; InvalidFileError about the first thing that is wrong."""
        if self.data is None:
            needed = ", ".join(keys_of(model, required=True))
            raise self.error((), "the file is empty", hint=f"it needs the keys {needed}")
        if not isinstance(self.data, dict):
            raise self.error(
                (),
                f"the top level is a {kind_of(self.data)}, not a map",
                hint="begin with a line such as `name: my-wan`",
            )
        try:
            return fit(model, self.data)
        except Unfit as unfit:
            raise self.error(unfit.path, unfit.message, hint=unfit.hint) from None

    def _line(self, path: KeyPath) -> int | None:
        node, line = self._node, None
        if node is None:
            return None
        for part in path:
            if isinstance(node, yaml.MappingNode):
                pair = next(((k, v) for k, v in node.value if k.value == str(part)), None)
                if pair is None:
                    break
                line, node = pair[0].start_mark.line + 1, pair[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line + 1
            else:
                break
        return line


def read_yaml(path: str | Path) -> Document:
    """Read a YAML (or JSON) file of at most a megabyte; InvalidFileError when it cannot be."""
    return parse_yaml(read_text(path), str(path))


def open_file(path: str | Path) -> BinaryIO:
    """A file that a user has named, opened for reading: the one door for all of them.

    A pipe that nobody writes to is waited for without end, a device may never end, and files are read more
    than once: only what is an ordinary file is opened.

    Raises:
        InvalidFileError: saying what it is instead.
    """
    file, source = Path(path), str(path)
    try:
        mode = file.stat().st_mode
        if not stat.S_ISREG(mode):
            kind, hint = _NOT_FILES.get(stat.S_IFMT(mode), ("no ordinary file", ""))
            raise InvalidFileError(f"{source} is {kind}, not a file", hint=hint)
        return file.open("rb")
    except FileNotFoundError:
        raise InvalidFileError(f"there is no file {source}", hint=_similar_file(file)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidFileError(f"cannot read {source!r}: {reason}") from None


_WRITE_IT = "write what it carries into a file"
_NOT_FILES = {
    stat.S_IFDIR: ("a folder", ""),
    stat.S_IFIFO: ("a pipe", _WRITE_IT),
    stat.S_IFCHR: ("a device", _WRITE_IT),
    stat.S_IFBLK: ("a device", _WRITE_IT),
    stat.S_IFSOCK: ("a socket", ""),
}


def read_text(path: str | Path, limit: int = MAX_BYTES) -> str:
    """The text of a file of at most `limit` bytes; InvalidFileError when it cannot be had."""
    source = str(path)
    with open_file(path) as stream:
        try:
            raw = stream.read(limit + 1)
        except OSError as error:
            raise InvalidFileError(f"cannot read {source!r}: {error.strerror}") from None
    if len(raw) > limit:
        raise InvalidFileError(f"{source} is larger than {limit} bytes", hint="is it the right file?")
    try:
        return raw.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        raise InvalidFileError(f"{source} is not UTF-8 text: byte {error.start} is wrong") from None


def parse_yaml(text: str, source: str) -> Document:
    """Parse YAML text strictly: no equal keys, no endless aliases, no tags that build objects."""
    # The pure Python loader on purpose: deep nesting ends in an exception there, in C it ends in a crash.
    try:
        loader = yaml.SafeLoader(text)
    except yaml.YAMLError as error:
        raise InvalidFileError(f"{source}: not valid YAML: {str(error).splitlines()[0]}") from None
    try:
        node = loader.get_single_node()
        if node is None:
            return Document(source, None)
        _check(node, source)
        return Document(source, loader.construct_document(node), node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}, line {mark.line + 1}" if mark else source
        raise InvalidFileError(
            f"{where}: not valid YAML: {error.problem or error.context}",
            hint="check indentation, colons and quotes",
        ) from None
    except RecursionError:
        raise InvalidFileError(
            f"{source}: values are nested too deeply", hint=f"at most {MAX_DEPTH} levels"
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidFileError(f"{source}: not valid YAML: {str(error).splitlines()[0]}") from None
    finally:
        loader.dispose()


def _check(root: yaml.Node, source: str) -> None:
    """Refuse equal keys, cycles, deep nesting and aliases that unfold to too much."""
    unfolded: dict[int, int] = {}
    open_nodes: set[int] = set()

    def count(node: yaml.Node, depth: int) -> int:
        where = f"{source}, line {node.start_mark.line + 1}"
        if isinstance(node, yaml.ScalarNode):
            return 1
        if depth > MAX_DEPTH:
            raise InvalidFileError(
                f"{where}: values are nested too deeply", hint=f"at most {MAX_DEPTH} levels"
            )
        if id(node) in open_nodes:
            raise InvalidFileError(
                f"{where}: an alias refers to what contains it", hint="write the values out"
            )
        if id(node) in unfolded:
            return unfolded[id(node)]
        open_nodes.add(id(node))
        if isinstance(node, yaml.MappingNode):
            _refuse_equal_keys(node, source)
            children = [child for pair in node.value for child in pair]
        else:
            children = list(node.value)
        total = 1 + sum(count(child, depth + 1) for child in children)
        open_nodes.discard(id(node))
        if total > MAX_VALUES:
            raise InvalidFileError(
                f"{where}: its aliases unfold to more than {MAX_VALUES} values", hint="write the values out"
            )
        unfolded[id(node)] = total
        return total

    count(root, 0)


def _refuse_equal_keys(node: yaml.MappingNode, source: str) -> None:
    seen: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise InvalidFileError(
                f"{source}, line {line}: a key is a list or a map, not text", hint="check the colons"
            )
        name = (key.tag, key.value)
        if name in seen:
            raise InvalidFileError(
                f"{source}, line {line}: the key {key.value!r} was already given on line {seen[name]}",
                hint="keep one of them",
            )
        seen[name] = line


def _similar_file(file: Path) -> str:
    parent = file.parent
    if not parent.is_dir():
        return f"there is no folder {parent} either"
    suffix = file.suffix.lower()
    # A misspelt script is another script; whatever else is misspelt may have another suffix as well.
    offered = (suffix,) if suffix == ".py" else _OFFERED
    names = sorted(entry.name for entry in parent.iterdir() if entry.suffix.lower() in offered)
    return nearest(file.name, names) if names else "check the name"
