"""Edge lists and nested names from files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from counterpoint.similarity.tables import table_rows

EDGES = ("child", "parent")
NESTED = (".yaml", ".yml", ".json")


def read_edges(file: Path) -> dict[str, list[str]]:
    """The parents of each node; see `read_taxonomy`."""
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    suffix = file.suffix.lower()
    if suffix in NESTED:
        return _nested(file)
    if suffix not in (".csv", ".tsv", ".parquet"):
        raise ValueError(f"{file} must end in .csv, .tsv, .parquet, {', '.join(NESTED)}")
    parents: dict[str, list[str]] = {}
    for row, (child, parent) in enumerate(table_rows(file, EDGES), start=1):
        if not child.strip() or not parent.strip():
            raise ValueError(
                f"{file}, row {row}: child is {child!r} and parent is {parent!r}: both are needed"
            )
        parents.setdefault(child.strip(), []).append(parent.strip())
    if not parents:
        raise ValueError(f"{file} has no rows")
    return parents


def _nested(file: Path) -> dict[str, list[str]]:
    try:
        text = file.read_text(encoding="utf-8")
        tree = json.loads(text) if file.suffix.lower() == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{file} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict) or not tree:
        raise ValueError(f"{file} must hold names nested in names, such as {{animal: [cat, dog]}}")
    parents: dict[str, list[str]] = {}
    # A stack, not recursion: a chain of a thousand kinds is a valid file.
    stack: list[tuple[Any, str | None]] = [(tree, None)]
    done: dict[tuple[int, str | None], Any] = {}  # a part of YAML may hold itself
    while stack:
        part, parent = stack.pop()
        if (id(part), parent) in done:
            continue
        done[id(part), parent] = part
        inside = part.items() if isinstance(part, dict) else [(one, None) for one in part]
        for name, below in inside:
            if isinstance(name, dict) and below is None and not isinstance(part, dict):
                stack.append((name, parent))
                continue
            if isinstance(name, bool) or not isinstance(name, str | int) or not str(name).strip():
                raise ValueError(f"{file}: a name is text, got {name!r} under {parent!r}")
            found = parents.setdefault(str(name), [])
            if parent is not None and parent not in found:
                found.append(parent)
            if isinstance(below, str):
                below = [below]
            if not isinstance(below, dict | list | None):
                raise ValueError(f"{file}: {name!r} must hold names or nothing, got {below!r}")
            if below:
                stack.append((below, str(name)))
    return parents
