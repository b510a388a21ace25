"""The examples of docs/evaluate.md run."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "evaluate.md"


def test_the_examples_run():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried > 30
    assert failed == 0
