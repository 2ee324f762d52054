"""What pydantic finds wrong with data, told in the project's own words: the object, the field, what to do.

The one door between plain data and a model. Raw words of pydantic's never reach a user, because every module
reads its models through `validated` (or `files.Document.validate`, which adds the line of the file), and nothing
else names pydantic's error.
"""

from __future__ import annotations

import types
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from topologies.errors import StormbedError, UsageError, nearest

Model = TypeVar("Model", bound=BaseModel)
KeyPath = tuple[str | int, ...]


class Unfit(Exception):
    """The first thing that is wrong with data for a model; whoever knows the object makes an error of it.

    path     where it stands in the data
    message  what it is
    hint     what to do; may be empty
    """

    def __init__(self, path: KeyPath, message: str, hint: str) -> None:
        super().__init__(path, message, hint)
        self.path, self.message, self.hint = path, message, hint

    def __str__(self) -> str:
        return f"{show(self.path)}: {self.message}" if self.path else self.message


def fit(model: type[Model], data: Any) -> Model:
    """Data as a model; Unfit about the first thing that is wrong."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise Unfit(*_explain(model, error)) from None


def validated(
    model: type[Model],
    data: Any,
    what: str = "",
    place: KeyPath = (),
    *,
    error: type[StormbedError] = UsageError,
    hint: str = "",
) -> Model:
    """Data as a model.

    Args:
        what: names the object that the data are of, `segment 'a'` or a path.
        place: where the data stand in that object.
        error: what is raised.
        hint: what to do where nothing closer to the fault can be said.

    Raises:
        StormbedError: of the given type, about the first thing that is wrong.
    """
    try:
        return fit(model, data)
    except Unfit as unfit:
        told = Unfit((*place, *unfit.path), unfit.message, unfit.hint)
        raise error(f"{what}: {told}" if what else str(told), hint=unfit.hint or hint) from None


def show(path: KeyPath) -> str:
    """`links[2].rate` for ("links", 2, "rate")."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def kind_of(value: object) -> str:
    """What a plain value is called in a file: map, list, text, ..."""
    names: dict[type, str] = {
        dict: "map",
        list: "list",
        str: "text",
        bool: "yes/no value",
        type(None): "blank",
    }
    return names.get(type(value), "number")


def keys_of(model: type[BaseModel], *, required: bool = False) -> list[str]:
    """The keys of a model's map, or those that it cannot do without."""
    fields = model.model_fields.items()
    return [field.alias or name for name, field in fields if field.is_required() or not required]


def _explain(model: type[BaseModel], error: ValidationError) -> tuple[KeyPath, str, str]:
    """Where the first thing that is wrong stands, what it is, and what to do. Pure."""
    first, path, more = _first_of(model, error.errors())
    context = first.get("ctx", {})
    cause = context.get("error")
    hint = ""
    match first["type"]:
        case "extra_forbidden":
            owner = _model_at(model, path[:-1])
            known = keys_of(owner) if owner else []
            message, hint = f"unknown key {str(path[-1])!r}", nearest(str(path[-1]), known)
        case "missing":
            message, hint = f"the key {str(path[-1])!r} is missing", "add it"
        case "value_error" if cause is not None:
            message, hint = getattr(cause, "message", str(cause)), getattr(cause, "hint", "")
            named, rest = _leading_path(message) if not path else ((), message)
            path, message = path + named, rest
        case "dict_type" | "model_type" | "model_attributes_type":
            message = f"this is a {kind_of(first['input'])}, not a map"
        case "tuple_type" | "list_type":
            message = f"this is a {kind_of(first['input'])}, not a list"
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
    if more:
        message += f"; {more} more of this kind follow" if more > 1 else "; one more follows"
    return path, message, hint


def _first_of(model: type[BaseModel], problems: list[Any]) -> tuple[Any, KeyPath, int]:
    """The problem to tell, where it stands in the data, and how many others there are."""
    wheres = [_in_the_data(model, problem["loc"]) for problem in problems]
    # An unknown key often explains a missing one (a misspelt `rate`), so it is told first.
    k = next((k for k, problem in enumerate(problems) if problem["type"] == "extra_forbidden"), 0)
    choice = wheres[k][1]
    if choice is not None and problems[k]["type"] != "extra_forbidden":
        # Where a value may be one thing or another, each is complained of: what fits the furthest was meant.
        same = [i for i, (_, other) in enumerate(wheres) if other == choice]
        k = max(same, key=lambda i: len(wheres[i][0]))
    things = {path if choice is None else choice for path, choice in wheres}
    return problems[k], wheres[k][0], len(things) - 1


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


def _in_the_data(model: type[BaseModel], loc: KeyPath) -> tuple[KeyPath, KeyPath | None]:
    """Where pydantic's `loc` is in the data, and the outermost value on the way there that may be one of several
    things: below such a value pydantic names the thing that it has tried.
    """
    path: KeyPath = ()
    choice: KeyPath | None = None
    here: list[Any] = [model]
    named = True
    for part in loc:
        if not named:
            choice, named = path if choice is None else choice, True
        elif part != "[key]":
            path, here = (*path, part), _below(here, part)
            named = len(here) < 2
    return path, choice


def _model_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """The model that describes the map at `path`, followed through the annotations."""
    here: list[Any] = [model]
    for part in path:
        here = _below(here, part)
    return next((each for each in here if _is_model(each)), None)


def _below(alternatives: list[Any], part: str | int) -> list[Any]:
    """What the entry `part` of a value may be, where the value itself is one of the alternatives."""
    for each in alternatives:
        origin, arguments = get_origin(each), get_args(each)
        if _is_model(each):
            fields = each.model_fields.items()
            found = [field.annotation for name, field in fields if part in (name, field.alias)]
            if found:
                return _alternatives(found[0])
        elif origin is dict:
            return _alternatives(arguments[1])
        elif origin in (list, tuple):
            return _alternatives(arguments[0])
    return []


def _alternatives(annotation: Any) -> list[Any]:
    """What a value may be, with Annotated and unions opened; that it may be left out does not count."""
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [each for option in get_args(annotation) for each in _alternatives(option)]
    return [] if annotation is type(None) else [annotation]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
