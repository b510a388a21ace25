"""The numbers of the report: what was measured, its mean and spread over seeds, and which is best."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from counterpoint.evaluate.record import Difference, Result, Spread, difference, spread
from counterpoint.report.runs import Method

PROTOCOLS = {
    "knn": "nearest neighbours",
    "linear": "linear probe",
    "linear-sgd-crops": "linear probe trained by SGD on crops",
    "linear-sgd": "linear probe trained by SGD",
    "linear-adam": "linear probe trained by Adam",
    "linear-adam-512": "linear probe trained by Adam, batch 512",
    "background": "background reliance",
    "zero_shot": "zero-shot",
    "matching": "matching of identities",
}
# What does not tell measures apart: k and column have fields of their own, the seed is what is averaged over,
# and rows of zeros are found in the features of each run.
NOT_PART_OF_A_MEASURE = {"k", "column", "seed", "rows_of_zeros"}
USUAL_K = 20


@dataclass(frozen=True)
class Measure:
    """One column of the table: a protocol on a label column, under the same settings for every recipe.

    settings: those that decide the number, k and seed apart, as JSON.
    k: neighbours of the kNN protocol, None for others.
    """

    protocol: str
    version: int
    metric: str
    column: str
    settings: str
    k: int | None = None

    @property
    def family(self) -> Measure:
        """The same measure without its k."""
        return Measure(self.protocol, self.version, self.metric, self.column, self.settings)

    @property
    def title(self) -> str:
        """The protocol in words."""
        return PROTOCOLS.get(self.protocol, self.protocol)


@dataclass(frozen=True)
class Cell:
    """One recipe on one measure.

    values: from seed to value, a share. over: their mean and spread.
    best: no recipe has a higher mean, to the digits that are printed. close: it has a lower one that is not
        clearly different from the best.
    """

    values: Mapping[int, float]
    over: Spread
    best: bool = False
    close: bool = False


@dataclass(frozen=True)
class Table:
    """All cells, by measure and by the index of the recipe; a recipe that was not measured has no cell."""

    measures: tuple[Measure, ...]
    cells: Mapping[Measure, Mapping[int, Cell]]
    counts: Mapping[Measure, tuple[int, ...]] = field(default_factory=dict)


def measure_of(result: Result) -> Measure:
    """What that result measures."""
    settings = {
        name: value
        for name, value in result.settings.items()
        if name not in result.chosen and name not in NOT_PART_OF_A_MEASURE
    }
    k = result.settings.get("k")
    return Measure(
        result.protocol,
        result.version,
        result.metric,
        str(result.settings.get("column", "")),
        json.dumps(settings, sort_keys=True),
        int(k) if isinstance(k, int | float) else None,
    )


def collect(methods: Sequence[Method]) -> dict[Measure, dict[int, dict[int, float]]]:
    """All values: by measure, then by index of the recipe, then by seed."""
    found: dict[Measure, dict[int, dict[int, float]]] = {}
    for method in methods:
        for run in method.whole:
            for result in run.results:
                found.setdefault(measure_of(result), {}).setdefault(method.index, {})[run.seed] = result.value
    return found


def build_table(methods: Sequence[Method]) -> Table:
    """The table of runs: for the nearest neighbours one k, the same for all."""
    found = collect(methods)
    measures = sorted(
        (measure for measure in found if measure.k in (None, table_k(found, measure))),
        key=lambda m: (_place(m.protocol), m.protocol, m.version, m.metric),
    )
    counts: dict[Measure, set[int]] = {}
    for result in (result for method in methods for run in method.whole for result in run.results):
        counts.setdefault(measure_of(result), set()).add(result.n)
    return Table(
        tuple(measures),
        {measure: _cells(measure, found[measure]) for measure in measures},
        {measure: tuple(sorted(counts[measure])) for measure in measures},
    )


def _place(protocol: str) -> int:
    return list(PROTOCOLS).index(protocol) if protocol in PROTOCOLS else len(PROTOCOLS)


def table_k(found: Mapping[Measure, object], measure: Measure) -> int | None:
    """The k shown in the table: 20 where it was measured, else the middle one; of matching the first.

    Never the best one.
    """
    ks = sorted(other.k for other in found if other.family == measure.family and other.k is not None)
    if not ks:
        return None
    if measure.protocol == "matching":
        return ks[0]
    return USUAL_K if USUAL_K in ks else ks[(len(ks) - 1) // 2]


def _cells(measure: Measure, by_method: Mapping[int, Mapping[int, float]]) -> dict[int, Cell]:
    cells = {index: Cell(values, spread(values.values())) for index, values in by_method.items()}
    # A gap between two accuracies has no better end that holds for every question.
    if measure.metric == "gap" or len(cells) < 2:
        return cells
    best = max(cells, key=lambda index: cells[index].over.mean)
    marked = {}
    for index, cell in cells.items():
        apart = paired(cell, cells[best])
        # What reads the same is marked the same.
        equal = printed(cell.over.mean) == printed(cells[best].over.mean)
        close = not equal and apart is not None and apart.holds_zero is True
        marked[index] = Cell(cell.values, cell.over, best=equal, close=close)
    return marked


def printed(share: float) -> str:
    """A share in percent as the table has it.

    >>> printed(0.52349)
    '52.3'
    """
    return f"{100 * share:.1f}"


def paired(a: Cell, b: Cell) -> Difference | None:
    """a - b over the seeds that both have, with the 95 % interval; None where they share no seed."""
    shared = a.values.keys() & b.values.keys()
    if not shared:
        return None
    return difference({seed: a.values[seed] for seed in shared}, {seed: b.values[seed] for seed in shared})


def detail(measure: Measure, among: Iterable[Measure]) -> str:
    """What tells a measure from others on the same label column: the settings that differ, or nothing."""
    own = json.loads(measure.settings)
    twins = [json.loads(other.settings) for other in among if other.column == measure.column]
    return ", ".join(
        f"{name} {value}" for name, value in own.items() if any(twin.get(name) != value for twin in twins)
    )


@dataclass(frozen=True)
class Standing:
    """Recipes by a value, the highest first; clear says of each whether it is clearly below the first.

    clear is None where there are too few seeds to tell.
    """

    method: int
    mean: float
    clear: bool | None


def standings(values: Mapping[int, Mapping[int, float]]) -> list[Standing]:
    """Rank recipes by their mean over seeds; values go by index of the recipe, then by seed."""
    cells = {index: Cell(by_seed, spread(by_seed.values())) for index, by_seed in values.items() if by_seed}
    order = sorted(cells, key=lambda index: -cells[index].over.mean)
    found = []
    for index in order:
        apart = paired(cells[order[0]], cells[index]) if index != order[0] else None
        holds_zero = None if apart is None else apart.holds_zero
        found.append(Standing(index, cells[index].over.mean, None if holds_zero is None else not holds_zero))
    return found


@dataclass(frozen=True)
class Protocol:
    """What decided the numbers of one protocol.

    settings: names and values that hold for all columns. by_column: the others, with a value per column.
    """

    title: str
    version: int
    metric: str
    columns: tuple[str, ...]
    k: tuple[int, ...]
    settings: Mapping[str, str]
    by_column: Mapping[str, Mapping[str, str]]


def protocols(measures: Iterable[Measure]) -> list[Protocol]:
    """The protocols behind these measures."""
    groups: dict[tuple[str, int, str], list[Measure]] = {}
    for measure in measures:
        groups.setdefault((measure.title, measure.version, measure.metric), []).append(measure)
    found = []
    for (title, version, metric), group in groups.items():
        columns = tuple(dict.fromkeys(m.column for m in group))
        values: dict[str, dict[str, list[str]]] = {}
        for measure in group:
            for name, value in json.loads(measure.settings).items():
                seen = values.setdefault(name, {}).setdefault(measure.column, [])
                text = value if isinstance(value, str) else json.dumps(value)
                if text not in seen:
                    seen.append(text)
        shown = {name: {c: " or ".join(v) for c, v in of.items()} for name, of in values.items()}
        same = {
            name: of for name, of in shown.items() if len(of) == len(columns) and len(set(of.values())) == 1
        }
        found.append(
            Protocol(
                title,
                version,
                metric,
                columns,
                tuple(sorted({m.k for m in group if m.k is not None})),
                {name: next(iter(of.values())) for name, of in same.items()},
                {name: of for name, of in shown.items() if name not in same},
            )
        )
    return found


def recipe_differences(methods: Sequence[Method]) -> list[tuple[str, list[str]]]:
    """The settings in which the recipes differ: the dotted key, and the value in each recipe."""
    flats = [flatten(method.recipe) for method in methods]
    keys = list(dict.fromkeys(key for flat in flats for key in flat if key not in ("name", "seed")))
    rows = [(key, [_shown(flat, key) for flat in flats]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def seed_differences(method: Method) -> list[str]:
    """Settings other than the seed that differ between the runs of one recipe; there should be none."""
    flats = [flatten(run.recipe) for run in method.runs if run.recipe]
    keys = dict.fromkeys(key for flat in flats for key in flat if key != "seed")
    return [key for key in keys if len({_shown(flat, key) for flat in flats}) > 1]


def flatten(value: object, prefix: str = "") -> dict[str, object]:
    """Nested mappings as one, with dotted keys.

    >>> flatten({"optim": {"name": "sgd", "lr": 0.1}, "seed": 0})
    {'optim.name': 'sgd', 'optim.lr': 0.1, 'seed': 0}
    """
    if isinstance(value, Mapping) and value:
        return {k: v for name, part in value.items() for k, v in flatten(part, f"{prefix}{name}.").items()}
    return {prefix.rstrip("."): value}


def _shown(flat: Mapping[str, object], key: str) -> str:
    if key not in flat or flat[key] is None:
        return "–"
    value = flat[key]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
