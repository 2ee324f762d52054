"""Reading YAML files strictly, with errors that name the file, the line, the key and the fix.

Used for every kind of file the project reads. Plain YAML forgives too much: it keeps the last of two
equal keys and unfolds nested aliases without end.
"""

from __future__ import annotations

import stat
import types
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from topologies.errors import InvalidFileError, UsageError, nearest

MAX_BYTES = 1_000_000
MAX_VALUES = 200_000
MAX_DEPTH = 50

_OFFERED = (".yaml", ".yml", ".json", ".gml", ".graphml", ".csv")
"""Files with these suffixes are offered when a name is misspelt."""

Model = TypeVar("Model", bound=BaseModel)
KeyPath = tuple[str | int, ...]


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
            raise self.error((), "the file is empty", hint=f"it needs the keys {', '.join(_required(model))}")
        if not isinstance(self.data, dict):
            raise self.error(
                (),
                f"the top level is a {_kind(self.data)}, not a map",
                hint="begin with a line such as `name: my-wan`",
            )
        try:
            return model.model_validate(self.data)
        except ValidationError as error:
            path, message, hint = explain(model, error)
            raise self.error(path, message, hint=hint) from None

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


def explain(model: type[BaseModel], error: ValidationError) -> tuple[KeyPath, str, str]:
    """Where the first thing that is wrong stands, what it is, and what to do, in words of the project's own. Pure."""
    problems = error.errors()
    # An unknown key often explains a missing one (a misspelt `rate`), so it is told first.
    first = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    path = tuple(part for part in first["loc"] if part != "[key]")
    context = first.get("ctx", {})
    cause = context.get("error")
    hint = ""
    match first["type"]:
        case "extra_forbidden":
            owner = _model_at(model, path[:-1])
            known = list(owner.model_fields) if owner else []
            message, hint = f"unknown key {str(path[-1])!r}", nearest(str(path[-1]), known)
        case "missing":
            message, hint = f"the key {str(path[-1])!r} is missing", "add it"
        case "value_error" if cause is not None:
            message, hint = getattr(cause, "message", str(cause)), getattr(cause, "hint", "")
            named, rest = _leading_path(message) if not path else ((), message)
            path, message = path + named, rest
        case "dict_type" | "model_type" | "model_attributes_type":
            message = f"this is a {_kind(first['input'])}, not a map"
        case "tuple_type" | "list_type":
            message = f"this is a {_kind(first['input'])}, not a list"
        case "too_short":
            least, length = context["min_length"], context["actual_length"]
            needed = "one entry" if least == 1 else f"{least} entries"
            what = "map" if isinstance(first["input"], dict) else "list"
            message = f"this {what} {f'has {length}' if length else 'is empty'}; it needs at least {needed}"
        case _:
            given = "blank" if first["input"] is None else f"{first['input']!r:.60}"
            message = f"{first['msg'].removeprefix('Input ').lower()}, not {given}"
    if path[:1] == ("links",) and first["type"] in ("too_long", "missing") and "endpoints" in path:
        message, hint = "a link joins exactly two sites", "write for example endpoints: [dc1, dc2]"
    if len(problems) > 1:
        message += f"; {len(problems) - 1} more of this kind follow" if len(problems) > 2 else "; one more follows"
    return path, message, hint


def parsed(model: type[Model], data: Any, place: KeyPath) -> Model:
    """Data that came in no file, as a pydantic model; UsageError about the first thing that is wrong at `place`."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        path, message, hint = explain(model, error)
        raise UsageError(f"{show((*place, *path))}: {message}", hint=hint) from None


def show(path: KeyPath) -> str:
    """`links[2].rate` for ("links", 2, "rate")."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


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


def _leading_path(message: str) -> tuple[KeyPath, str]:
    """Split the `links[3].rate: ` off a message of a check that concerns the whole model."""
    head, separator, rest = message.partition(": ")
    if not separator or " " in head:
        return (), message
    parts: list[str | int] = []
    for piece in head.split("."):
        name, bracket, index = piece.partition("[")
        parts.append(name)
        if bracket:
            parts.append(int(index.rstrip("]")))
    return tuple(parts), rest


def _kind(value: object) -> str:
    names: dict[type, str] = {
        dict: "map",
        list: "list",
        str: "text",
        bool: "yes/no value",
        type(None): "blank",
    }
    return names.get(type(value), "number")


def _required(model: type[BaseModel]) -> list[str]:
    return [name for name, field in model.model_fields.items() if field.is_required()]


def _model_at(model: Any, path: KeyPath) -> type[BaseModel] | None:
    """The model class that describes the map at `path`, followed through the annotations."""
    current = model
    for part in path:
        candidates = _members(current)
        current = None
        for candidate in candidates:
            origin, args = get_origin(candidate), get_args(candidate)
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                field = candidate.model_fields.get(str(part))
                current = field.annotation if field else None
            elif origin is dict:
                current = args[1]
            elif origin in (list, tuple):
                current = args[0]
            if current is not None:
                break
    models = [m for m in _members(current) if isinstance(m, type) and issubclass(m, BaseModel)]
    return models[0] if models else None


def _members(annotation: Any) -> list[Any]:
    """The alternatives of an annotation, with Annotated and unions opened."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [member for option in get_args(annotation) for member in _members(option)]
    return [annotation]
