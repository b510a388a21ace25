"""Write the report: one HTML file that needs nothing beside it."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from counterpoint import __version__
from counterpoint.evaluate.record import Result
from counterpoint.files import write_whole
from counterpoint.report.ablation import ablation_section
from counterpoint.report.answer import Change, answer, change
from counterpoint.report.classes import Target, read_targets
from counterpoint.report.figures import curve_panels, difference_panels, k_panels, k_winners
from counterpoint.report.neighbours import Picture, Query, thumbnails
from counterpoint.report.plots import COLOURS, DIVERGING
from counterpoint.report.readings import curve_reading, gallery_reading, k_reading, table_reading
from counterpoint.report.runs import Method, read_methods
from counterpoint.report.sections import (
    NEIGHBOURS,
    class_maps,
    gallery,
    look,
    share_rows,
    shares_of,
    table_rows,
)
from counterpoint.report.tables import build_table, collect, protocols, recipe_differences, seed_differences
from counterpoint.report.trained import graph_of, objective_of

PICTURE_BYTES = 1_600_000


def write_report(
    runs: Sequence[Path],
    out: Path,
    *,
    title: str,
    picture: Picture | None = None,
    overwrite: bool = False,
    ablation: Path | None = None,
) -> Path:
    """Write one HTML page that compares runs; return its path.

    runs: run folders, several seeds per recipe where there are; the first recipe is the baseline. A folder
        that lacks results is listed as incomplete.
    picture: gives the test picture of a key for the gallery; without it the gallery shows labels only.
    ablation: the file in which `counterpoint compare --vary` noted what was varied; it may be missing.

    Raises ValueError for no runs, a path that is no folder, two runs with one name and seed, and an `out`
    that is there already unless `overwrite`.

    >>> import tempfile
    >>> run = Path(tempfile.mkdtemp()) / "infonce" / "seed-0"
    >>> run.mkdir(parents=True)
    >>> _ = (run / "recipe.yaml").write_text("{name: infonce, seed: 0, objective: {name: infonce, tau: 0.1}}")
    >>> page = write_report([run], run / "report.html", title="First look")
    >>> "no results.json" in page.read_text(encoding="utf-8")
    True
    """
    out = Path(out)
    if out.exists() and not overwrite:
        raise ValueError(f"{out} is there already: give another path, or overwrite=True")
    methods = read_methods(runs)
    html = template("page.html.jinja").render(**_context(methods, title, picture, ablation))
    write_whole(out, html.encode("utf-8"))
    return out


def _context(
    methods: Sequence[Method], title: str, picture: Picture | None, ablation: Path | None
) -> dict[str, Any]:
    notes: list[str] = []
    targets = _targets(methods, notes)
    seen = look(methods, targets)
    table = build_table(methods)
    queries = gallery(seen)
    first = seen.columns[0] if seen.columns else ""
    return {
        "title": title,
        "colours": COLOURS,
        "diverging": {theme: ", ".join(colours) for theme, colours in DIVERGING.items()},
        "answer": answer(methods, table),
        "methods": [_key(method, change(table, method)) for method in methods],
        "warnings": _warnings(methods),
        "incomplete": [run for method in methods for run in method.runs if run.missing],
        "notes": [*notes, *seen.notes],
        "ablation": ablation_section(ablation, methods, table),
        "table": table_rows(methods, table, seen),
        "table_reading": table_reading(methods, table),
        "differences": difference_panels(methods, table),
        "curves": curve_panels(methods),
        "curve_reading": curve_reading(methods),
        "k_panels": k_panels(methods),
        "k_reading": k_reading(k_winners(methods)),
        "class_maps": class_maps(methods, targets, seen),
        "queries": queries,
        "pictures": _pictures(queries, picture),
        "columns": seen.columns,
        "shares": share_rows(methods, seen),
        "gallery_reading": gallery_reading(methods, shares_of(seen, first), first, NEIGHBOURS),
        "gallery_seeds": sorted(set(seen.seed.values())),
        "neighbours": NEIGHBOURS,
        "made": _made(methods),
    }


def _targets(methods: Sequence[Method], notes: list[str]) -> list[Target]:
    try:
        return read_targets(methods)
    except ValueError as error:
        notes.append(str(error))
        return []


def _key(method: Method, changed: Change) -> dict[str, Any]:
    objective, meaning = objective_of(method)
    return {
        "index": method.index,
        "colour": method.index % COLOURS,
        "name": method.name,
        "objective": objective,
        "meaning": meaning,
        "graph": graph_of(method),
        "seeds": method.seeds,
        "change": changed,
    }


def _warnings(methods: Sequence[Method]) -> list[str]:
    lines = [f"{run.name}, seed {run.seed}: {run.warning}" for m in methods for run in m.runs if run.warning]
    for method in methods:
        keys = seed_differences(method)
        if keys:
            lines.append(f"{method.name}: its runs differ in more than the seed: {', '.join(keys)}")
    counts: dict[str, set[int]] = {}
    for result in (result for method in methods for run in method.whole for result in run.results):
        counts.setdefault(_counted(result), set()).add(result.n)
    for column, sizes in counts.items():
        if len(sizes) > 1:
            text = ", ".join(str(size) for size in sorted(sizes))
            lines.append(f"{column}: not all results count the same number of test samples ({text})")
    return lines


def _counted(result: Result) -> str:
    """What a result counts: accuracies of a column the same samples, matching rows or identities."""
    column = str(result.settings.get("column", ""))
    if result.protocol != "matching":
        return column
    return f"{column}, {result.metric} {result.settings.get('direction', '')}".rstrip()


def _pictures(queries: Sequence[Query], picture: Picture | None) -> dict[str, Markup]:
    if picture is None or not queries:
        return {}
    return {key: Markup(uri) for key, uri in thumbnails(queries, picture, PICTURE_BYTES).items()}


def _made(methods: Sequence[Method]) -> dict[str, Any]:
    return {
        "protocols": protocols(collect(methods)),
        "differences": recipe_differences(methods),
        "recipes": [
            (method, yaml.safe_dump(dict(method.recipe), sort_keys=False, allow_unicode=True))
            for method in methods
            if method.recipe
        ],
        "folders": [(method, [str(run.folder) for run in method.runs]) for method in methods],
        "versions": {
            "counterpoint": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "numpy", "matplotlib")},
        },
    }


def template(name: str) -> Any:
    """A template of the report package, ready to render; a name it lacks is an error."""
    environment = Environment(
        loader=PackageLoader("counterpoint.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template(name)
