"""The one-line readings: what each section of the report shows, from its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from counterpoint.evaluate.record import spread
from counterpoint.report.answer import percent, seeds
from counterpoint.report.classes import Agreement, Target
from counterpoint.report.runs import Method
from counterpoint.report.tables import Standing, Table, standings
from counterpoint.train.health import TOO_SHORT


def table_reading(methods: Sequence[Method], table: Table) -> str:
    """How many runs there are, and whether spread can be told."""
    counts = {len(method.whole) for method in methods if method.whole}
    if not counts:
        return "No run has been measured yet."
    recipes = f"{len(methods)} recipes" if len(methods) > 1 else "One recipe"
    if counts == {1}:
        return f"{recipes}, 1 seed: the spread between seeds is not known, so small differences mean little."
    each = seeds(counts.pop()) if len(counts) == 1 else f"{min(counts)} to {max(counts)} seeds"
    marked = [cell for cells in table.cells.values() for cell in cells.values() if cell.close]
    ties = "" if len(methods) == 1 else (
        f" {len(marked)} {'figure is' if len(marked) == 1 else 'figures are'} not clearly below the best one."
        if marked else " Every best figure is clearly above the others."
    )  # fmt: skip
    return f"{recipes}, {each} {'each' if len(methods) > 1 else ''}".rstrip() + f".{ties}"


def curve_reading(methods: Sequence[Method]) -> str:
    """Who learned, by the health check of the training log."""
    logged = [method for method in methods if any(run.curves for run in method.runs)]
    if not logged:
        return "No run has a training log."
    warned = {method.name: [run.warning for run in method.runs if run.warning] for method in logged}
    short = [name for name, lines in warned.items() if any(line.startswith(TOO_SHORT) for line in lines)]
    ill = [name for name, lines in warned.items() if any(not line.startswith(TOO_SHORT) for line in lines)]
    if ill:
        return f"Something went wrong in training: see the warning for {', '.join(ill)} above."
    if short:
        return f"Too few steps to tell whether {_and(short)} {'learn' if len(short) > 1 else 'learns'}."
    held = [method for method in logged if _ends_with(method, "loss", "chance")]
    others = [method for method in logged if method not in held]
    spreads = all(_ends_with(method, "spread") for method in logged)
    if held and not others:
        if len(logged) == 1:
            whole = " and its embeddings do not collapse" if spreads else ""
            return f"The recipe learns: its loss ends below chance{whole}."
        whole = ", and no embeddings collapse" if spreads else ""
        return f"All {len(logged)} recipes learn: each loss ends below chance{whole}."
    said = []
    if held:
        learn = "learns: its loss ends" if len(held) == 1 else "learn: each loss ends"
        said.append(f"{_and([method.name for method in held])} {learn} below chance.")
    names = _and([method.name for method in others])
    said.append(
        f"{names} {'logs' if len(others) == 1 else 'log'} no chance to hold a loss against{_found(others)}."
    )
    return " ".join([*said, *(["No embeddings collapse."] if spreads else [])])


def _ends_with(method: Method, *columns: str) -> bool:
    """Whether the last row of each log has a number in these columns."""
    return all(run.last(column) is not None for run in method.runs if run.curves for column in columns)


def _found(methods: Sequence[Method]) -> str:
    """How often these recipes found the right partner at the end, where their logs say it."""
    parts = []
    for method in methods:
        ends = [end for run in method.runs if (end := run.last("accuracy")) is not None]
        if ends:
            parts.append((method.name, percent(sum(ends) / len(ends))))
    if not parts:
        return ""
    told = [share if len(methods) == 1 else f"{share} for {name}" for name, share in parts]
    return f"; contrastive accuracy ends at {_and(told)}"


def k_reading(winners: Mapping[str, set[int]]) -> str:
    """Whether the choice of k matters to who is first."""
    changes = [column for column, best in winners.items() if len(best) > 1]
    if not winners:
        return "Few neighbours test the fine detail of the features, many test whole neighbourhoods."
    if not changes:
        return "On every column one recipe has the highest mean at every k."
    rest = "; on the other columns it does not" if len(changes) < len(winners) else ""
    return f"Which recipe has the highest mean changes with k on {_and(changes)}{rest}."


def map_reading(methods: Sequence[Method], target: Target, agreements: Sequence[Agreement]) -> str:
    """Which encoder arranges the classes most like the target."""
    if target.flat:
        return (
            "This target calls all pairs of different classes equally alike, so there is no order to compare "
            "with; the maps show what the encoders made of the classes."
        )
    ranked = standings({one.method: one.ranks for one in agreements})
    if not ranked:
        return "No encoder's features could be compared with this target."
    first, *others = ranked
    name = methods[first.method].name
    if not others:
        return f"{name} arranges the classes like the target to a rank correlation of {signed(first.mean)}."
    rest = _against(methods, others, signed, "above")
    return f"{name} arranges the classes most like the target: rank correlation {signed(first.mean)}, {rest}."


def gallery_reading(
    methods: Sequence[Method], shares: Mapping[int, Mapping[int, float]], column: str, k: int
) -> str:
    """How many neighbours share the first label; shares go by index of the recipe, then by seed."""
    ranked = standings(shares)
    if not ranked:
        return f"The {k} nearest other test pictures of a few queries."
    first, *others = ranked
    start = f"Of the {k} nearest test pictures, {first.mean:.1f} share the query's {column}"
    if not others:
        return f"{start} on average."
    rest = _against(methods, others, lambda value: f"{value:.1f}", "more than")
    return f"{start} for {methods[first.method].name} on average, {rest}."


def correlation(agreement: Agreement, target: Target) -> str:
    """The line under a class map."""
    if not agreement.ranks:
        return "no correlation: the target's pairs are all equal" if target.flat else "no correlation"
    rank, linear = (
        signed(value.mean) + (f" ± {value.std:.2f}" if value.std is not None else "")
        for value in (spread(agreement.ranks.values()), spread(agreement.linears.values()))
    )
    over = seeds(len(agreement.ranks))
    return f"correlation with the target: rank {rank} (Spearman), linear {linear} (Pearson), {over}"


def signed(value: float) -> str:
    """A correlation with two decimals and a true minus sign.

    >>> signed(-0.123), signed(-0.001)
    ('−0.12', '0.00')
    """
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")


def _against(
    methods: Sequence[Method], others: Sequence[Standing], shown: Callable[[float], str], more: str
) -> str:
    """The values of the others, those that are clearly lower apart from those that are not."""
    lower = [one for one in others if one.clear is not False]
    close = [one for one in others if one.clear is False]
    parts = []
    for lead, group in (("against ", lower), (f"not clearly {more} ", close)):
        if len(group) > 3:
            ends = f"{shown(group[0].mean)} down to {shown(group[-1].mean)}"
            parts.append(f"{lead}{ends} for {len(group)} others")
        elif group:
            parts.append(lead + _and([f"{shown(one.mean)} for {methods[one.method].name}" for one in group]))
    return ", ".join(parts)


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
