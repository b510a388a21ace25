"""Imports point one way: cli -> report, evaluate, train -> models, data, similarity -> objectives."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "counterpoint"
LEVELS = {
    "cli": 0,
    "cli_similarity": 0,
    "__main__": 0,
    "report": 1,
    "evaluate": 1,
    "train": 1,
    "models": 2,
    "data": 2,
    "similarity": 2,
    "ranks": 2,
    "objectives": 3,
}
GROUND = 4
"""Single modules beside the parts (extras, the package itself): all but objectives may use them."""


def part_of(module: str) -> str:
    """The part a dotted module name belongs to; "" for the package itself."""
    return module.split(".")[1] if "." in module else ""


def level(part: str) -> int:
    return LEVELS.get(part, GROUND)


def imported(path: Path, package: Path) -> Iterator[str]:
    """Modules of the package that a file imports, at its top or inside a function."""
    here = (package.name, *path.relative_to(package).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(here[: len(here) - node.level + 1]) if node.level else ""
            base = ".".join(part for part in (start, node.module) if part)
            # `from counterpoint import data` imports the part, `from counterpoint.data import x` stays in it.
            names = [f"{base}.{alias.name}" for alias in node.names] if base == package.name else [base]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == package.name)


def complaints(package: Path) -> list[str]:
    """Every import against the rule, and a circle of parts if there is one."""
    found: list[str] = []
    needs: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        part = inside.parts[0].removesuffix(".py")
        part = "" if part == "__init__" else part
        if len(inside.parts) > 1 and part not in LEVELS:
            found.append(f"{inside}: part {part!r} has no level in tests/test_imports.py")
        for module in imported(path, package):
            other = part_of(module)
            is_name = other and not ((package / other).is_dir() or (package / f"{other}.py").is_file())
            other = "" if is_name else other  # `from counterpoint import __version__`
            if other == part:
                continue
            if level(other) < level(part) or (part == "objectives"):
                found.append(f"{inside} imports {module}")
            needs.setdefault(part, set()).add(other)
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        found.append(f"parts import each other in a circle: {', '.join(sorted(set(error.args[1])))}")
    return found


def test_imports_point_one_way():
    assert len(list(PACKAGE.rglob("*.py"))) > 10
    assert complaints(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        ("objectives/a.py", "import torch", None),
        ("objectives/a.py", "from counterpoint.objectives.b import c", None),
        (
            "objectives/a.py",
            "from counterpoint.extras import need",
            "objectives/a.py imports counterpoint.extras",
        ),
        ("objectives/a.py", "from counterpoint import data", "objectives/a.py imports counterpoint.data"),
        ("objectives/a.py", "from ..data import b", "objectives/a.py imports counterpoint.data"),
        ("objectives/a.py", "from .. import data", "objectives/a.py imports counterpoint.data"),
        (
            "objectives/a.py",
            "def f():\n    import counterpoint.data.b",
            "objectives/a.py imports counterpoint.data.b",
        ),
        ("data/a.py", "from counterpoint.objectives import b", None),
        ("data/a.py", "from counterpoint import __version__", None),
        ("data/a.py", "from counterpoint.extras import need", None),
        ("data/a.py", "from counterpoint.train.b import c", "data/a.py imports counterpoint.train.b"),
        ("train/a.py", "from counterpoint.cli import b", "train/a.py imports counterpoint.cli"),
        ("train/a.py", "from counterpoint.evaluate import b", None),
        ("extras.py", "from counterpoint.data import b", "extras.py imports counterpoint.data"),
        ("cli.py", "from counterpoint import train, data, report", None),
        ("zoo/a.py", "import torch", "zoo/a.py: part 'zoo' has no level in tests/test_imports.py"),
    ],
)
def test_the_rule_sees_what_it_should(tmp_path: Path, file: str, line: str, complaint: str | None):
    package = tmp_path / "counterpoint"
    for part in ("objectives", "data", "train", "evaluate", "report"):
        (package / part).mkdir(parents=True)
        (package / part / "__init__.py").write_text("")
    for module in ("__init__", "extras", "cli"):
        (package / f"{module}.py").write_text("")
    (package / file).parent.mkdir(exist_ok=True)
    (package / file).write_text(line)
    assert complaints(package) == ([] if complaint is None else [complaint])


def test_the_rule_sees_a_circle(tmp_path: Path):
    package = tmp_path / "counterpoint"
    for part, other in (("report", "evaluate"), ("evaluate", "train"), ("train", "report")):
        (package / part).mkdir(parents=True)
        (package / part / "a.py").write_text(f"from counterpoint.{other} import b")
    assert complaints(package) == ["parts import each other in a circle: evaluate, report, train"]
