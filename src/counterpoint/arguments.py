"""Typed arguments from a function's own signature, so that a recipe needs no second list of them.

A data source, an objective or a graph is a function or class with typed, defaulted arguments. The recipe
section that names it takes exactly those arguments: checked, the defaults filled in, unknown ones refused.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model, model_validator

from counterpoint.names import hint


def choose(kind: str, name: str, table: Mapping[str, Any]) -> Any:
    """The entry of that name, or a ValueError with the nearest right one."""
    if name not in table:
        raise ValueError(f"unknown {kind} {name!r}: {hint(name, table)}")
    return table[name]


class Named(BaseModel):
    """A part of a recipe that names a thing and takes that thing's own arguments beside it.

    A subclass checks the name with `choose`, and fills in the arguments with `arguments`.
    """

    # NaN goes to JSON and back as it is, and is refused by the thing it is given to, not as null.
    model_config = ConfigDict(
        extra="allow", frozen=True, protected_namespaces=(), ser_json_inf_nan="constants"
    )

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, given: Any) -> Any:
        refuse_truth(cls.model_fields, given)
        return given

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the named thing, checked and with defaults filled in."""
        return dict(self.__pydantic_extra__ or {})

    def _fill(self, checked: Mapping[str, Any]) -> None:
        if self.__pydantic_extra__ is not None:
            self.__pydantic_extra__.update(checked)


@cache
def _model(function: Callable[..., Any], leave_out: frozenset[str]) -> type[BaseModel]:
    target = function.__init__ if inspect.isclass(function) else function
    hints = typing.get_type_hints(target)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(target).parameters.values():
        if parameter.name in leave_out | {"self"}:
            continue
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    return create_model(
        function.__name__,
        __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=()),
        **fields,
    )


def refuse_truth(fields: Mapping[str, Any], given: Any) -> None:
    """ValueError where a number is wanted and true or false is given, which pydantic takes for 1 or 0."""
    for name, value in given.items() if isinstance(given, Mapping) else ():
        kinds = _kinds(fields[name].annotation) if isinstance(value, bool) and name in fields else set()
        if kinds & {int, float} and bool not in kinds:
            raise ValueError(f"{name} must be a number, got {value!r}")


def _kinds(annotation: Any) -> set[Any]:
    """The types that a value itself may have; of containers not what they hold."""
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return {kind for part in parts for kind in _kinds(part)}
    return _kinds(parts[0]) if typing.get_origin(annotation) is typing.Annotated else {annotation}


def arguments(
    function: Callable[..., Any], given: Mapping[str, Any], where: str, leave_out: Iterable[str] = ()
) -> dict[str, Any]:
    """All arguments of a function or class: the given ones checked, the others at their defaults.

    where: the place in the recipe, for the message. leave_out: arguments the caller fills in.
    Raises ValueError on a name the function does not have, a missing one, or a wrong type.

    >>> def cut(size: int, share: float = 0.5): ...
    >>> arguments(cut, {"size": 3}, where="data")
    {'size': 3, 'share': 0.5}
    """
    model = _model(function, frozenset(leave_out))
    try:
        refuse_truth(model.model_fields, given)
    except ValueError as error:
        raise ValueError(f"{where}.{error}" if where else str(error)) from None
    try:
        checked = model.model_validate(dict(given))
    except ValidationError as error:
        raise ValueError("; ".join(problems(error, model, where))) from None
    return {name: getattr(checked, name) for name in type(checked).model_fields}


def problems(error: ValidationError, model: type[BaseModel], where: str = "") -> list[str]:
    """One plain sentence per fault that pydantic found; what only follows from another fault is left out."""
    by_place: dict[tuple[int | str, ...], list[Any]] = {}
    for fault in error.errors():
        place = tuple(part for part in fault["loc"] if not _is_branch(part))
        by_place.setdefault(place, []).append({**fault, "loc": place})
    return [
        _sentence(_one_of(faults), model, where)
        for place, faults in by_place.items()
        if not any(len(other) > len(place) and other[: len(place)] == place for other in by_place)
    ]


def _is_branch(part: int | str) -> bool:
    """Whether a part of a place is no key, but pydantic's name of one type of several that are allowed."""
    return isinstance(part, str) and re.fullmatch(r"str|int|float|bool|none|[\w-]+\[.*\]", part) is not None


def _one_of(faults: Sequence[Any]) -> Any:
    """One fault of those that each type of several had to find with a value."""
    start = "Input should be "
    wanted = [fault["msg"].removeprefix(start) for fault in faults if fault["msg"].startswith(start)]
    message = start + " or ".join(dict.fromkeys(wanted)) if len(wanted) > 1 else faults[0]["msg"]
    return {**faults[0], "msg": message}


def _sentence(fault: Any, model: type[BaseModel], where: str) -> str:
    path = [str(part) for part in fault["loc"]]
    key = ".".join([where, *path] if where else path)
    if fault["type"] == "extra_forbidden":
        owner = _owner(model, path[:-1])
        return f"{key} is not a key of the recipe: {hint(path[-1], owner.model_fields if owner else [])}"
    if fault["type"] == "missing":
        return f"{key} is missing"
    if fault["type"] == "value_error":
        reason = str(fault["ctx"]["error"])
        return f"{key}: {reason}" if key and not reason.startswith(key.split(".")[0]) else reason
    message = fault["msg"][0].lower() + fault["msg"][1:]
    return f"{key}: {message}, got {fault['input']!r}"


def _owner(model: type[BaseModel], path: list[str]) -> type[BaseModel] | None:
    """The section a key stands in."""
    owner: type[BaseModel] | None = model
    for part in path:
        field = owner.model_fields.get(part) if owner else None
        kinds = [field.annotation, *typing.get_args(field.annotation)] if field else []
        owner = next((k for k in kinds if inspect.isclass(k) and issubclass(k, BaseModel)), None)
    return owner
