"""The examples of docs/objectives run, and print what they say they print."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from counterpoint.objectives import OBJECTIVES

DOCS = Path(__file__).parents[2] / "docs" / "objectives"
PAGES = [*sorted(DOCS.glob("*.md")), DOCS.parent / "streaming.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(page: Path):
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    for code in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(page), "exec"), {})
        promised = re.findall(r"^ *print\(.*\)  # (.*)$", code, flags=re.MULTILINE)
        assert printed.getvalue().splitlines() == promised


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_has_a_page(name: str):
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    for section in ("## Inputs", "## Use when", "## Relations", "## Example"):
        assert section in text
    assert f"({name}.md)" in (DOCS / "index.md").read_text(encoding="utf-8")
