"""Arguments of an objective that change at given epochs: checked with the recipe, set by the loop.

A schedule maps an argument to epochs and values: `{"tau": {3: 0.2, 5: 0.1}}`. Epochs count from 1, as in
metrics.csv: tau is what the recipe's `tau` says in epochs 1 and 2, 0.2 from the first step of epoch 3 on, and
0.1 from the first step of epoch 5 on. The value is a function of the epoch alone, so resuming needs no state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from counterpoint.arguments import arguments
from counterpoint.names import hint
from counterpoint.objectives import Objective, WeightedSum

Number = int | float
Schedule = Mapping[str, Mapping[int, Number]]


def check_schedule(kind: Callable[..., Objective], own: Mapping[str, Any], schedule: Schedule) -> None:
    """ValueError where an objective with the arguments `own` could not run by this schedule.

    Every value is put through the objective's constructor, and set on an objective as the loop does it.

    >>> from counterpoint.objectives import NTXent
    >>> check_schedule(NTXent, {"tau": 0.5}, {"tau": {3: -1.0}})
    Traceback (most recent call last):
    ValueError: objective.schedule.tau.3: tau must be a finite number above 0, got -1.0
    """
    for name, steps in schedule.items():
        if name not in own:
            raise ValueError(
                f"objective.schedule.{name} is not an argument of the objective: {hint(name, own)}"
            )
        if not steps:
            raise ValueError(f"objective.schedule.{name} is empty: give epochs and values, such as {{75: 5}}")
        for epoch, value in steps.items():
            place = f"objective.schedule.{name}.{epoch}"
            if epoch < 2:
                raise ValueError(
                    f"{place}: epochs count from 1, and the first has objective.{name}: give 2 or more"
                )
            try:
                checked = arguments(kind, {**own, name: value}, "objective")
                if isinstance(checked[name], bool) or not isinstance(checked[name], int | float):
                    raise ValueError(f"{name} is not a number, and only numbers have a schedule")
                set_argument(kind(**own), name, kind(**checked))
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None


def set_argument(objective: Objective, name: str, like: Objective) -> None:
    """Give an objective the argument of that name which another of its kind has.

    Objectives keep their arguments as attributes of the same names. Parameters and what the optimiser knows
    of them stay.
    """
    try:
        setattr(objective, name, getattr(like, name))
    except AttributeError:
        raise ValueError(f"{name} of {objective.name} cannot change during a run") from None


def value_at(first: Number | None, steps: Mapping[int, Number], epoch: int) -> Number | None:
    """The value in that epoch, counted from 1; `first` is the one before all steps.

    >>> [value_at(50, {75: 5, 125: 0.5}, epoch) for epoch in (1, 74, 75, 124, 125, 400)]
    [50, 50, 5, 5, 0.5, 0.5]
    """
    begun = [start for start in steps if start <= epoch]
    return steps[max(begun)] if begun else first


class Schedules:
    """The schedules of all terms of an objective.

    terms: of each term the kind, the arguments and the schedule, in the order of the recipe.
    objective: what they were built into.

    >>> from counterpoint.objectives import NTXent
    >>> objective = NTXent(tau=0.5)
    >>> schedules = Schedules(objective, [(NTXent, {"tau": 0.5}, {"tau": {3: 0.1}})])
    >>> schedules.enter(2), schedules.enter(3), objective.tau
    ({'tau': 0.5}, {'tau': 0.1}, 0.1)
    """

    def __init__(
        self,
        objective: Objective,
        terms: Sequence[tuple[Callable[..., Objective], Mapping[str, Any], Schedule]],
    ) -> None:
        modules: Sequence[Any] = list(objective.terms) if isinstance(objective, WeightedSum) else [objective]
        self._terms = list(zip(modules, terms, strict=True))

    def enter(self, epoch: int) -> dict[str, float | None]:
        """Set the values of that epoch, counted from 1, and tell them for the log.

        A name is that of the argument; where two terms have a schedule for it, the later ones have the number
        of the term in front.
        """
        told: dict[str, float | None] = {}
        for position, (module, (kind, own, schedule)) in enumerate(self._terms):
            for name, steps in schedule.items():
                value = value_at(own[name], steps, epoch)
                set_argument(module, name, kind(**{**own, name: value}))
                told[name if name not in told else f"{position}/{name}"] = (
                    None if value is None else float(value)
                )
        return told

    def past(self, epochs: int) -> list[str]:
        """What would change only after so many epochs, in words."""
        return [
            f"{name} at epoch {epoch}"
            for _, (_, _, schedule) in self._terms
            for name, steps in schedule.items()
            for epoch in sorted(steps)
            if epoch > epochs
        ]
