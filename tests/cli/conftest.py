import sys

import pytest

from counterpoint.cli import main


@pytest.fixture
def counterpoint(monkeypatch, capsys):
    """Run a command line in this process; gives exit code, standard output and standard error."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["counterpoint", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run
