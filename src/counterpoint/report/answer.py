"""The answer in words: which recipe is best on which label column, by how much, and whether that is clear."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from counterpoint.evaluate.record import Difference
from counterpoint.report.runs import Method
from counterpoint.report.tables import Measure, Table, paired

# What the sentences judge by where no accuracy was measured, the first of these first.
MATCHING = ("recall", "assignment")


@dataclass(frozen=True)
class Lead:
    """Who is best on one measure, and how far from the baseline (None where it cannot be compared).

    level: all recipes whose mean reads the same as the best one's, where there are others.
    """

    measure: Measure
    best: int
    mean: float
    gain: Difference | None
    level: tuple[int, ...] = ()


def answer(methods: Sequence[Method], table: Table) -> list[Markup]:
    """The sentences of the opening paragraph, safe for HTML."""
    measures = _judging(table)
    if not measures:
        shown = "the pictures below show what each encoder takes for alike"
        return [Markup(f"No accuracy has been measured; {shown}.")]
    main = [m for m in measures if m.protocol == measures[0].protocol]
    name = {method.index: method.name for method in methods}
    judged = _judged(main[0])
    if len(methods) == 1:
        reached = _listing(
            Markup("{} on {}").format(percent(table.cells[m][0].over.mean), asked(m)) for m in main
        )
        return [Markup("Judged by {}, {} reaches {}.").format(judged, _strong(name[0]), reached),
                Markup("There is no second recipe to compare it with.")]  # fmt: skip
    leads = [lead for m in main if (lead := lead_of(table, m)) is not None]
    if not leads:
        return [Markup("Only one recipe has results yet, so there is nothing to compare.")]
    ahead = [lead for lead in leads if not lead.level]
    sentences = [
        *_clear(ahead, name),
        *_baseline(ahead, name, table),
        *_unclear(ahead, name),
        *_alone(ahead, name),
        *_level(leads, name),
    ]
    first = sentences[0]
    sentences[0] = Markup("Judged by {}, {}").format(
        judged, first if first.startswith("<") else _lower(first)
    )
    return [*sentences, *_other_protocols(table, measures, leads)]


def lead_of(table: Table, measure: Measure) -> Lead | None:
    """Who is best on that measure; None where fewer than two recipes were measured."""
    cells = table.cells[measure]
    marked = tuple(sorted(index for index, cell in cells.items() if cell.best))
    if not marked:
        return None
    best = max(marked, key=lambda index: cells[index].over.mean)
    gain = paired(cells[best], cells[0]) if best and 0 in cells else None
    return Lead(measure, best, cells[best].over.mean, gain, marked if len(marked) > 1 else ())


@dataclass(frozen=True)
class Change:
    """One recipe against the baseline: label columns with the difference in points, by how clear it is."""

    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()


def change(table: Table, method: Method) -> Change:
    """What one recipe changed against the baseline under the main protocol, the largest difference first.

    alone: columns where one seed says nothing of chance.
    """
    measures = _judging(table)
    kinds: dict[str, list[tuple[float, str]]] = {"above": [], "below": [], "unclear": [], "alone": []}
    for measure in (m for m in measures if m.protocol == measures[0].protocol):
        cells = table.cells[measure]
        apart = paired(cells[method.index], cells[0]) if {0, method.index} <= cells.keys() else None
        if apart is None or method.index == 0:
            continue
        kind = {None: "alone", True: "unclear", False: "above" if apart.mean > 0 else "below"}[
            apart.holds_zero
        ]
        text = asked(measure)
        if kind != "unclear":
            text += f" {100 * apart.mean:+.1f}".replace("-", "−")
        kinds[kind].append((-abs(apart.mean), text))
    return Change(**{kind: tuple(text for _, text in sorted(found)) for kind, found in kinds.items()})


def _judging(table: Table) -> list[Measure]:
    """The measures that the sentences are about: all accuracies; where there are none, those of matching."""
    accuracies = [m for m in table.measures if m.metric == "accuracy"]
    found = [m for m in table.measures if m.protocol == "matching" and m.metric in MATCHING]
    return accuracies or sorted(found, key=lambda m: MATCHING.index(m.metric))


def asked(measure: Measure) -> str:
    """What a measure asks for, in a few words: its label column; of matching, which has one, its metric.

    >>> asked(Measure("matching", 1, "recall", "identity", '{"direction": "a to b"}', k=1))
    'recall@1 from a to b'
    """
    if measure.protocol != "matching":
        return measure.column
    direction = json.loads(measure.settings).get("direction", "")
    if measure.k is None:
        return measure.metric
    return f"{measure.metric}@{measure.k} from {direction}"


def percent(share: float) -> str:
    """A share as a percentage with one decimal.

    >>> percent(0.7126)
    '71.3 %'
    """
    return f"{100 * share:.1f} %"


def points(share: float) -> str:
    """A difference of shares in percentage points, without its sign.

    >>> points(-0.0214), points(0.01)
    ('2.1 points', '1.0 point')
    """
    size = f"{100 * abs(share):.1f}"
    return f"{size} {'point' if size == '1.0' else 'points'}"


def seeds(count: int) -> str:
    """A number of seeds in words.

    >>> seeds(1), seeds(3)
    ('1 seed', '3 seeds')
    """
    return f"{count} seed" if count == 1 else f"{count} seeds"


def _judged(measure: Measure) -> Markup:
    if measure.protocol == "knn":
        return (
            Markup("the {} nearest neighbours").format(measure.k)
            if measure.k != 1
            else Markup("the nearest neighbour")
        )
    return Markup("the {}").format(measure.title)


def _clear(leads: Sequence[Lead], name: dict[int, str]) -> list[Markup]:
    """One sentence for each recipe that is best and clearly above the baseline."""
    sentences = []
    for index in sorted({lead.best for lead in leads if _is_clear(lead)}):
        won = sorted(
            (lead for lead in leads if lead.best == index and _is_clear(lead)), key=_gain, reverse=True
        )
        parts = [
            Markup("{} ({}, {} above the baseline)").format(
                asked(x.measure), percent(x.mean), points(_gain(x))
            )
            for x in won
        ]
        sentences.append(Markup("{} is best on {}.").format(_strong(name[index]), _listing(parts)))
    return sentences


def _baseline(leads: Sequence[Lead], name: dict[int, str], table: Table) -> list[Markup]:
    won = [lead for lead in leads if lead.best == 0]
    if not won:
        return []
    tied = [asked(lead.measure) for lead in won if any(c.close for c in table.cells[lead.measure].values())]
    columns = _listing(Markup("{}").format(asked(lead.measure)) for lead in won)
    sentence = Markup("The baseline {} has the highest mean on {}").format(_strong(name[0]), columns)
    if not tied:
        return [sentence + "."]
    those = "there" if len(tied) == len(won) else Markup("on {}").format(_listing(map(Markup.escape, tied)))
    return [sentence + Markup("; {} another recipe is not clearly lower.").format(those)]


def _unclear(leads: Sequence[Lead], name: dict[int, str]) -> list[Markup]:
    """One sentence for all columns where the best recipe is within the spread of the baseline."""
    by_seeds: dict[int, list[Markup]] = {}
    for lead in leads:
        if lead.gain is not None and lead.gain.holds_zero is True:
            text = Markup("{} ({}, {} above the baseline)").format(
                asked(lead.measure), _strong(name[lead.best]), points(lead.gain.mean)
            )
            by_seeds.setdefault(lead.gain.n, []).append(text)
    return [
        Markup("The lead{} on {} {} not clear with {}.").format(
            "s" if len(parts) > 1 else "", _listing(parts), "are" if len(parts) > 1 else "is", seeds(n)
        )
        for n, parts in by_seeds.items()
    ]


def _alone(leads: Sequence[Lead], name: dict[int, str]) -> list[Markup]:
    """Where there is one seed, or nothing to pair with: figures without a claim."""
    sentences = []
    single = [lead for lead in leads if lead.gain is not None and lead.gain.holds_zero is None]
    for index in sorted({lead.best for lead in single}):
        parts = [
            Markup("{} ({}, {} above the baseline)").format(
                asked(x.measure), percent(x.mean), points(_gain(x))
            )
            for x in single
            if x.best == index
        ]
        sentences.append(Markup("{} is highest on {}.").format(_strong(name[index]), _listing(parts)))
    if single:
        sentences.append(Markup("With 1 seed it is not clear which differences are luck."))
    for lead in leads:
        if lead.best and lead.gain is None:
            sentences.append(
                Markup("On {} {} is highest ({}); the baseline has no result with the same seed.").format(
                    asked(lead.measure), _strong(name[lead.best]), percent(lead.mean)
                )
            )
    return sentences


def _level(leads: Sequence[Lead], name: dict[int, str]) -> list[Markup]:
    """One sentence for each measure whose highest means read the same."""
    return [
        Markup("On {} {} have the same highest mean, {}.").format(
            asked(lead.measure), _listing(_strong(name[index]) for index in lead.level), percent(lead.mean)
        )
        for lead in leads
        if lead.level
    ]


def _first(lead: Lead) -> set[int]:
    return {lead.best, *lead.level}


def _other_protocols(table: Table, measures: Sequence[Measure], leads: Sequence[Lead]) -> list[Markup]:
    best = {lead.measure.column: _first(lead) for lead in leads}
    sentences = []
    for protocol in dict.fromkeys(m.protocol for m in measures if m.protocol != leads[0].measure.protocol):
        own = [m for m in measures if m.protocol == protocol and m.column in best]
        # One accuracy per column can agree or not; a protocol with several asks another question.
        if len({m.column for m in own}) < len(own):
            continue
        others = [lead for m in own if (lead := lead_of(table, m)) is not None]
        same = sum(bool(_first(lead) & best[lead.measure.column]) for lead in others)
        if not others:
            continue
        title = others[0].measure.title
        count = "both columns" if len(others) == 2 else f"all {len(others)} columns"
        if len(others) == 1:
            sentences.append(
                Markup("The {} {}.").format(title, "agrees" if same else "puts another recipe first")
            )
        elif same == len(others):
            sentences.append(Markup("The {} puts the same recipe first on {}.").format(title, count))
        else:
            sentences.append(
                Markup("The {} puts the same recipe first on {} of {} columns.").format(
                    title, same, len(others)
                )
            )
    return sentences


def _is_clear(lead: Lead) -> bool:
    return lead.gain is not None and lead.gain.holds_zero is False


def _gain(lead: Lead) -> float:
    return 0.0 if lead.gain is None else lead.gain.mean


def _strong(text: str) -> Markup:
    return Markup("<strong>{}</strong>").format(text)


def _listing(parts: Iterable[Markup]) -> Markup:
    """`a`, `a and b`, `a, b and c`."""
    given = list(parts)
    if len(given) == 1:
        return given[0]
    return Markup("{} and {}").format(Markup(", ").join(given[:-1]), given[-1])


def _lower(text: Markup) -> Markup:
    return Markup(text[:1].lower() + text[1:])
