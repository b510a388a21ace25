"""The section on what was varied: the right points at the right places."""

import json
import re

import numpy as np
import pytest

from counterpoint.evaluate.record import Result, save_results
from counterpoint.report import write_report
from counterpoint.report.ablation import ablation_section
from counterpoint.report.runs import read_methods
from counterpoint.report.tables import build_table

TAU_S = (0.05, 0.1, 0.4)


def make(folder, names, seeds=(0, 1)):
    """Runs whose accuracy is 0.3 + 0.1 times the place of the recipe, and 0.02 more for seed 1."""
    runs = []
    for place, name in enumerate(names):
        for seed in seeds:
            run = folder / name / f"seed-{seed}"
            run.mkdir(parents=True)
            (run / "recipe.yaml").write_text(json.dumps({"name": name, "seed": seed}))
            value = 0.3 + 0.1 * place + 0.02 * seed
            settings = {"column": "object", "k": 5, "seed": seed}
            result = Result(protocol="knn", version=1, value=value, n=50, settings=settings)
            save_results(run / "results.json", [result])
            runs.append(run)
    return runs


@pytest.fixture
def numbers(tmp_path):
    names = ["simclr", *(f"xclr-tau_s-{value}" for value in TAU_S)]
    points = [{"name": "simclr", "base": "simclr", "values": {}}]
    points += [
        {"name": f"xclr-tau_s-{value}", "base": "xclr", "values": {"objective.tau_s": value}}
        for value in TAU_S
    ]
    plan = tmp_path / "ablation.json"
    plan.write_text(json.dumps({"keys": ["objective.tau_s"], "points": points}))
    return plan, make(tmp_path, names)


def test_numbers_have_their_place_and_the_other_recipe_its_line(numbers, monkeypatch):
    from counterpoint.report import ablation

    plan, runs = numbers
    drawn = []
    real = ablation.value_plot
    monkeypatch.setattr(ablation, "value_plot", lambda *a, **k: drawn.append((a, k)) or real(*a, **k))
    methods = read_methods(runs)
    section = ablation_section(plan, methods, build_table(methods))
    (marked, across, told, _, x_title, ticks), options = drawn[0]
    assert [one.method for one in marked] == [1]
    np.testing.assert_allclose(marked[0].x, TAU_S)
    np.testing.assert_allclose(marked[0].y, [0.41, 0.51, 0.61])
    np.testing.assert_allclose(marked[0].low, [0.4, 0.5, 0.6])
    np.testing.assert_allclose(marked[0].high, [0.42, 0.52, 0.62])
    np.testing.assert_allclose(across[0].y, [0.31])
    assert options == {"scale": "log"}
    assert [text for _, text in ticks] == ["0.05", "0.1", "0.4"]
    assert x_title == "objective.tau_s"
    assert "object" in told
    assert section["lines"] == [{"index": 0, "name": "simclr"}, {"index": 1, "name": "xclr"}]
    assert section["readings"] == ["object: nearest neighbours, k = 5, xclr: highest at 0.4, 61.0 %."]


def test_the_page_shows_it_only_where_something_was_varied(numbers, tmp_path):
    plan, runs = numbers
    with_it = write_report(runs, tmp_path / "a.html", title="t", ablation=plan).read_text()
    without = write_report(runs, tmp_path / "b.html", title="t", ablation=tmp_path / "none.json").read_text()
    assert 'id="ablation"' in with_it
    assert 'id="ablation"' not in without
    section = re.search(r'<section id="ablation">.*?</section>', with_it, re.S)[0]
    assert section.count("<svg") == 1
    assert "highest at 0.4" in section


def test_names_stand_side_by_side(tmp_path, monkeypatch):
    from counterpoint.report import ablation

    names = ["x-instance", "x-class-static"]
    values = [{"graph": "instance"}, {"graph": "class", "encoder": "static"}]
    points = [
        {"name": name, "base": "x", "values": {"similarity": value}}
        for name, value in zip(names, values, strict=True)
    ]
    plan = tmp_path / "ablation.json"
    plan.write_text(json.dumps({"keys": ["similarity"], "points": points}))
    methods = read_methods(make(tmp_path, names, seeds=(0,)))
    drawn = []
    real = ablation.value_plot
    monkeypatch.setattr(ablation, "value_plot", lambda *a, **k: drawn.append((a, k)) or real(*a, **k))
    assert ablation_section(plan, methods, build_table(methods))["panels"]
    (marked, across, *_, ticks), options = drawn[0]
    assert (ticks, options["scale"]) == ([(0.0, "instance"), (1.0, "class-static")], "names")
    assert marked[0].low is None
    assert across == []
