"""The examples of docs/audit.md run."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"


def test_the_examples_run():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried > 10
    assert failed == 0
