import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from counterpoint.report.runs import read_methods, read_run


def test_runs_are_grouped_by_recipe_in_the_given_order(runs: Sequence[Path]) -> None:
    order = [runs[7], runs[2], runs[0], runs[6]]
    methods = read_methods(order)
    assert [(m.index, m.name, m.seeds) for m in methods] == [
        (0, "xclr-captions", (0, 1)),
        (1, "infonce", (0, 2)),
    ]


def test_curves_hold_nan_where_a_cell_is_empty(runs: Sequence[Path]) -> None:
    run = read_run(runs[0])
    assert len(run.curves["step"]) == 61
    assert np.isnan(run.curves["target_entropy"]).all()
    assert run.seconds == 82.0
    assert run.missing == ()
    assert run.warning is None


def test_step_that_stands_twice_counts_once(runs: Sequence[Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs[0], tmp_path / "seed-0"))
    with (folder / "metrics.csv").open("a") as file:
        file.write("300,3,1.5,6.2,0.5,,,0.8,0.001,1900,0.02\n")
    curves = read_run(folder).curves
    assert len(curves["step"]) == 61
    assert (np.diff(curves["step"]) > 0).all()
    assert curves["loss"][30] == 1.5


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("recipe.yaml", "a: [", "recipe.yaml is not valid YAML"),
        ("recipe.yaml", "- a", "recipe.yaml holds no mapping of keys to values"),
        ("results.json", "[]", "no accuracy was measured, as its data has no labels"),
        ("results.json", '{"a": 1}', "results.json must hold a list of results, got dict"),
        ("metrics.csv", "step,loss\n1,high\n", "metrics.csv holds a cell that is not a number"),
        ("metrics.csv", "step,loss\n1,2,3\n", "metrics.csv holds a cell that is not a number"),
    ],
)
def test_broken_file_is_named(
    runs: Sequence[Path], tmp_path: Path, name: str, content: str, reason: str
) -> None:
    folder = Path(shutil.copytree(runs[0], tmp_path / "infonce" / "seed-0"))
    (folder / name).write_text(content)
    assert read_run(folder).missing == (reason,)
    assert read_run(folder).name == "infonce"


def test_folders_that_cannot_be_a_report_are_refused(runs: Sequence[Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one run folder"):
        read_methods([])
    with pytest.raises(ValueError, match="there is no such folder"):
        read_methods([tmp_path / "none"])
    copy = Path(shutil.copytree(runs[0], tmp_path / "copy"))
    with pytest.raises(
        ValueError, match=r"two runs are called 'infonce' with seed 0: .*infonce.seed-0 and .*copy"
    ):
        read_methods([runs[0], copy])
