"""The command line, the metrics and the models of files as Markdown. Pure."""

from __future__ import annotations

import inspect
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from testbed.telemetry.exported import Exported

_LIMITS: Final = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
# As a file writes them; see docs/topologies.md.
_UNITS: Final = {
    "Rate": "a rate such as `100mbit`",
    "Delay": "a time such as `10ms`",
    "Span": "a time such as `4s`",
    "Loss": "a share such as `0.1%`, or `{mean: 1%, burst: 8}`",
    "Size": "a size such as `64KB`",
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "true or false",
    "Any": "anything",
}


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([_row(columns), _row(["---"] * len(columns)), *(_row(row) for row in rows)])


# ---- the command line


def cli_markdown(app: typer.Typer) -> str:
    """Every verb with its arguments and options, in the order of the help."""
    root: Any = typer.main.get_command(app)
    parts = [f"```\n{inspect.cleandoc(root.help)}\n```"]
    for name, command in root.commands.items():
        parts += _verb(f"testbed {name}", command)
    return "\n\n".join(parts) + "\n"


def _verb(name: str, command: Any) -> Iterator[str]:
    if command.hidden:
        return
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [
        param for param in command.params if param.param_type_name == "option" and not getattr(param, "hidden", 0)
    ]
    inner = getattr(command, "commands", {})
    shown = [_argument(param) for param in arguments]
    usage = " ".join([name, *(["[OPTIONS]"] if options else []), *shown, *(["VERB"] if inner else [])])
    yield f"## {name}" if name.count(" ") == 1 else f"### {name}"
    if command.help:
        # Typer keeps a form feed where the text for people ends.
        yield inspect.cleandoc(command.help.split("\f")[0])
    yield f"    {usage}"
    rows = [[f"`{_metavar(param)}`", _sentence(param.help), ""] for param in arguments]
    rows += [[_spelling(param), _sentence(param.help), _default(param)] for param in options]
    if rows:
        yield _table(["argument or option", "what it is", "default"], rows)
    for below, further in inner.items():
        yield from _verb(f"{name} {below}", further)


def _metavar(param: Any) -> str:
    if param.metavar:
        return str(param.metavar)
    return param.name.upper() + ("..." if param.nargs == -1 else "")


def _argument(param: Any) -> str:
    shown = _metavar(param)
    return shown if param.required or shown.startswith("[") else f"[{shown}]"


def _spelling(param: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
    if param.is_flag:
        return names
    return f"{names} {param.metavar or _kind(param)}"


def _kind(param: Any) -> str:
    """What an option takes: the words themselves, or NUMBER, PATH, TEXT."""
    # Typer had click's types before it had descriptors.
    descriptor = getattr(param, "type_descriptor", None)
    if descriptor is None:
        choices = getattr(param.type, "choices", None)
        return "/".join(map(str, choices)) if choices else str(param.type.name).upper()
    annotation = descriptor.annotation
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "/".join(str(choice.value) for choice in annotation)
    return {int: "NUMBER", float: "NUMBER", Path: "PATH"}.get(annotation, "TEXT")


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split())


def _default(param: Any) -> str:
    value = param.default
    if param.required:
        return "required"
    if value is None or callable(value) or value in ("", (), []) or "Sentinel" in type(value).__name__:
        return ""
    if isinstance(value, bool):
        return ("on" if value else "off") if param.secondary_opts else ""
    return f"`{getattr(value, 'value', value)}`"


# ---- metrics


def metrics_markdown(metrics: Sequence[Exported]) -> str:
    """A table for each of those who export."""
    parts = []
    for job in dict.fromkeys(metric.job for metric in metrics):
        rows = [
            [
                " ".join(f"`{name}`" for name in metric.samples),
                metric.kind,
                ", ".join(f"`{label}`" for label in metric.labels),
                f"{metric.help}.",
            ]
            for metric in metrics
            if metric.job == job
        ]
        parts += [f"### {job}", _table(["name", "type", "labels", "what it says"], rows)]
    return "\n\n".join(parts) + "\n"


# ---- models


def models_markdown(top: type[BaseModel]) -> str:
    """A section for the model and for each one that it holds, with every key, its type and its default."""
    parts: list[str] = []
    for path, model in _held(top):
        title = f"`{path}:`" if path else "The file"
        parts += [f"## {title}", *_model(model)]
    return "\n\n".join(parts) + "\n"


def _held(top: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """The model and all that it holds, each once, with the path of keys where it is met first."""
    waiting: deque[tuple[str, type[BaseModel]]] = deque([("", top)])
    seen: set[type[BaseModel]] = set()
    while waiting:
        path, model = waiting.popleft()
        if model in seen:
            continue
        seen.add(model)
        yield path, model
        for name, field in model.model_fields.items():
            key = field.alias or name
            waiting += [(f"{path}.{key}" if path else key, inner) for inner in _models_in(field.annotation)]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and not get_args(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _model(model: type[BaseModel]) -> Iterator[str]:
    prose, described = _docstring(model)
    if prose:
        yield prose
    rows = [
        [
            f"`{field.alias or name}`",
            _type(field.annotation) + _limits(field),
            _value(field),
            described.get(name, field.description or ""),
        ]
        for name, field in model.model_fields.items()
    ]
    columns = ["key", "value", "default", "what it is"]
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    yield _table(columns, rows)


def _docstring(model: type[BaseModel]) -> tuple[str, dict[str, str]]:
    """The text of a model's docstring, and what its `Attributes:` say of each key."""
    text = inspect.cleandoc(model.__doc__ or "")
    prose, _, attributes = text.partition("Attributes:\n")
    described: dict[str, str] = {}
    name = ""
    for line in attributes.splitlines():
        found = re.match(r" {4}(\w+(?:, \w+)*): (.*)", line)
        if found is not None:
            name = found[1]
            described[name] = found[2]
        elif name and line.strip():
            described[name] += f" {line.strip()}"
    return prose.strip(), {key: text for names, text in described.items() for key in names.split(", ")}


def _type(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(parts[0])
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_type(part) for part in parts if part is not NoneType))
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (tuple, list):
        kinds = [part for part in parts if part is not Ellipsis]
        return f"list: {_type(kinds[0])}" if len(set(kinds)) == 1 else "list"
    if origin is dict:
        return f"map of names: {_type(parts[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "map, see below"
    name = getattr(annotation, "__name__", str(annotation))
    return _UNITS.get(name, name)


def _limits(field: FieldInfo) -> str:
    found = {}
    for limit in field.metadata:
        for key, _ in _LIMITS:
            if getattr(limit, key, None) is not None:
                found[key] = getattr(limit, key)
    said = [f"{word} {found[key]:,}" for key, word in _LIMITS if key in found]
    return f" ({', '.join(said)})" if said else ""


def _value(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
        return f"`{value}`" if isinstance(value, str) else "its own defaults"
    if value is None or value in ({}, (), []):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple | list):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`"
