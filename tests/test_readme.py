"""What the README shows is run as it stands there."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from PIL import Image

from counterpoint.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def commands():
    return [line for block in blocks("sh") for line in block.splitlines() if line.startswith("counterpoint ")]


def test_the_python_runs():
    shown = blocks("python")
    assert shown
    for block in shown:
        exec(block, {})


@pytest.mark.slow
def test_the_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = ["path,caption,label"]
    for i in range(60):
        colour = ("red", "green", "blue")[i % 3]
        shade = [40, 40, 40]
        shade[i % 3] = 150 + i
        Image.new("RGB", (40, 40), tuple(shade)).save(f"{i}.png")
        rows.append(f"{i}.png,a {colour} square,{colour}")
    Path("captions.csv").write_text("\n".join(rows) + "\n")
    shown = commands()
    assert len(shown) >= 6
    for line in shown:
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code, f"{line}: {capsys.readouterr().err}"
    pages = (Path(__file__).parents[1] / "docs" / "runs.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", pages, re.S):
        exec(block, {})
    assert Path("all.npz").exists()
    for made in ("runs/mine/report.html", "runs/pair/report.html", "runs/pair/xclr/seed-1/results.json"):
        assert Path(made).exists(), made


def test_other_commands_are_make_targets_or_the_install():
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    for block in blocks("sh"):
        for line in block.splitlines():
            if line.startswith("make "):
                assert f"\n{line.split()[1]}:" in makefile
            elif line.startswith("pip "):
                assert "-e '.[text]'" in line
                assert "-e '.[text]'" in makefile
            else:
                assert line.startswith("counterpoint "), line


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists(), target
