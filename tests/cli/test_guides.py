"""The comparisons of the guides can be run as they are written."""

import re
import shlex
from pathlib import Path

import pytest

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
COMMANDS = [
    line
    for guide in ("which-graph", "ablations", "finetune")
    for line in re.findall(r"^counterpoint (compare .*)$", (GUIDES / f"{guide}.md").read_text(), re.M)
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_plan_of_a_comparison(command, counterpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = counterpoint(*shlex.split(command), "--dry-run")
    assert code == 0, err
    assert "# would write:" in out
    if "--vary" in command:
        keys = re.findall(r"--vary \"?([a-z_.]+)=", command)
        assert all(f"{key}=" in out for key in keys)


def test_there_are_commands_to_try():
    assert len(COMMANDS) >= 7
