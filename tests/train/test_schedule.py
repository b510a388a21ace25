"""Arguments that change during a run: what is refused, what takes effect when, and resuming."""

import inspect
import io

import pytest
import torch
import yaml
from rich.console import Console

from counterpoint.arguments import arguments
from counterpoint.objectives import CLIP, OBJECTIVES, Hinge, NTXent
from counterpoint.train.checkpoint import checkpoints, load_checkpoint
from counterpoint.train.log import read_metrics
from counterpoint.train.loop import fit
from counterpoint.train.recipe import override, parse_recipe
from counterpoint.train.schedule import Schedules, value_at

SMALL = {
    "name": "small",
    "data": {"source": "shapes", "count": 96, "size": 32},
    "views": {"preset": "simclr_small", "size": 24, "crop_scale": [0.7, 1.0], "jitter_p": 0.0},
    "model": {"backbone": "conv4", "head": [16]},
    "objective": {"name": "ntxent", "tau": 0.5, "schedule": {"tau": {2: 0.2, 4: 0.1}}},
    "optim": {"lr": 0.01},
    "train": {"epochs": 4, "batch_size": 32, "log_every": 1, "save_every": 100},
}


def quiet():
    return Console(file=io.StringIO())


def end_state(run):
    state = load_checkpoint(checkpoints(run.checkpoints)[-1])
    return {name: tensor for part in ("encoder", "objective") for name, tensor in state[part].items()}


def built(kind, **changes):
    return kind(**arguments(kind, changes, "objective"))


def numeric_arguments(kind):
    """Arguments that are numbers by default, with two other values that the constructor takes."""
    found = []
    for name, parameter in inspect.signature(kind).parameters.items():
        first = parameter.default
        if isinstance(first, bool) or not isinstance(first, int | float):
            continue
        values = []
        for value in (first * 2, first * 3, first + 1, first + 2):
            try:
                built(kind, **{name: value})
            except ValueError:
                continue
            values.append(value)
        found.append((name, values[0]))
    return found


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives_have_their_arguments_as_attributes(name):
    kind = OBJECTIVES[name]
    objective = built(kind)
    for argument, parameter in inspect.signature(kind).parameters.items():
        assert hasattr(objective, argument), f"{kind.__name__} has no attribute {argument!r}"
        if isinstance(parameter.default, bool | int | float):
            assert getattr(objective, argument) == parameter.default


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_argument_set_later_is_as_good_as_one_given(name):
    kind = OBJECTIVES[name]
    g = torch.Generator().manual_seed(0)
    z0, z1 = torch.randn(2, 12, 6, generator=g).unbind(0)
    side = {}
    if "labels" in kind.requires:
        side["labels"] = torch.randint(3, (12,), generator=g)
    if "target" in kind.requires:
        side["target"] = torch.rand(12, 12, generator=g)
    changed = 0
    for argument, value in numeric_arguments(kind):
        late = built(kind)
        first = float(late(z0, z1, **side))
        schedules = Schedules(late, [(kind, arguments(kind, {}, "objective"), {argument: {2: value}})])
        schedules.enter(2)
        given = float(built(kind, **{argument: value})(z0, z1, **side))
        assert float(late(z0, z1, **side)) == pytest.approx(given, rel=1e-6), argument
        changed += abs(given - first) > 1e-6
    assert changed


def test_a_value_holds_from_the_start_of_its_epoch():
    steps = {125: 0.5, 75: 5}  # in any order
    assert [value_at(50, steps, epoch) for epoch in (1, 74, 75, 124, 125, 400)] == [50, 50, 5, 5, 0.5, 0.5]


def test_two_terms_each_with_their_own():
    objective = NTXent(tau=0.5) + 0.5 * NTXent(tau=0.4) + Hinge()
    schedules = Schedules(
        objective,
        [
            (NTXent, {"tau": 0.5, "reduction": "mean_log"}, {"tau": {3: 0.1}}),
            (NTXent, {"tau": 0.4, "reduction": "mean_log"}, {"tau": {2: 0.2}}),
            (Hinge, {"margin": 0.2}, {}),
        ],
    )
    assert schedules.enter(2) == {"tau": 0.5, "1/tau": 0.2}
    assert schedules.enter(3) == {"tau": 0.1, "1/tau": 0.2}
    assert [term.tau for term in objective.terms[:2]] == [0.1, 0.2]
    assert objective.terms[2].margin == 0.2
    assert schedules.enter(1) == {"tau": 0.5, "1/tau": 0.4}


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ({"schedule": {"tua": {2: 0.1}}}, r"schedule\.tua is not an argument .*did you mean 'tau'\?"),
        ({"schedule": {"tau": {2: -1}}}, r"objective\.schedule\.tau\.2: tau must be .* above 0, got -1"),
        ({"schedule": {"tau": {2: 0.2, 5: 0}}}, r"objective\.schedule\.tau\.5: tau must be"),
        ({"schedule": {"tau": {1: 0.1}}}, r"tau\.1: epochs count from 1.*objective\.tau"),
        ({"schedule": {"tau": {0: 0.1}}}, r"tau\.0: epochs count from 1"),
        ({"schedule": {"tau": {}}}, r"tau is empty"),
        ({"schedule": {"tau": 0.1}}, r"schedule\.tau: .*dictionary.*got 0\.1"),
        ({"schedule": {"tau": {"soon": 0.1}}}, r"schedule\.tau\.soon"),
        ({"schedule": {"tau": {2: "hot"}}}, r"schedule\.tau\.2"),
        ({"schedule": {"reduction": {2: 1}}}, r"schedule\.reduction\.2: "),
        ({"name": "clip", "learnable": True, "schedule": {"tau": {2: 0.1}}}, r"tau of CLIP cannot change"),
        ({"name": "clip", "schedule": {"learnable": {2: 1}}}, r"learnable is not a number"),
    ],
)
def test_faults_are_named(objective, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_recipe(SMALL | {"objective": {"name": "ntxent"} | objective})
    assert "\n" not in str(caught.value)


def test_it_is_written_down_and_read_back():
    recipe = parse_recipe(SMALL)
    plain = yaml.safe_load(recipe.to_yaml())
    assert plain["objective"]["schedule"] == {"tau": {2: 0.2, 4: 0.1}}
    assert parse_recipe(plain) == recipe
    changed = parse_recipe(override(plain, ["objective.schedule.tau.4=0.3"]))
    assert changed.objective[0].schedule == {"tau": {2: 0.2, 4: 0.3}}


def test_the_log_says_the_value_in_force(tmp_path):
    run = fit(parse_recipe(SMALL), tmp_path, console=quiet())
    rows = read_metrics(run.metrics)
    assert [(row["epoch"], row["tau"]) for row in rows[::3]] == [(1, 0.5), (2, 0.2), (3, 0.2), (4, 0.1)]
    assert [row["tau"] for row in rows] == [0.5] * 3 + [0.2] * 6 + [0.1] * 3


def test_the_schedule_is_what_trains(tmp_path):
    words = {
        "scheduled": [],
        "plain": ["objective={name: ntxent, tau: 0.5}"],
        "to the same value": ["objective={name: ntxent, tau: 0.5, schedule: {tau: {2: 0.5, 4: 0.5}}}"],
    }
    ends = {
        name: end_state(fit(parse_recipe(override(SMALL, change)), tmp_path / name, console=quiet()))
        for name, change in words.items()
    }
    plain = ends["plain"]
    assert any(not torch.equal(value, ends["scheduled"][key]) for key, value in plain.items())
    assert all(torch.equal(value, ends["to the same value"][key]) for key, value in plain.items())


@pytest.mark.parametrize("stop", [2, 3, 5, 9])  # before, at and past the epochs in which tau changes
def test_resuming_across_a_change_is_bit_equal(tmp_path, stop):
    recipe = parse_recipe(SMALL)
    whole = fit(recipe, tmp_path / "whole", console=quiet())
    part = parse_recipe(override(SMALL, ["train.save_every=1", "train.keep=100"]))
    run = fit(part, tmp_path / "part", console=quiet())
    for path in checkpoints(run.checkpoints)[stop:]:
        path.unlink()
    resumed = fit(recipe, tmp_path / "part", resume=True, console=quiet())
    ends = [end_state(whole), end_state(resumed)]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(value, ends[1][key]) for key, value in ends[0].items())
    rows = [
        [(row["step"], row["tau"], row["loss"]) for row in read_metrics(r.metrics)] for r in (whole, resumed)
    ]
    assert rows[0] == rows[1]


def test_what_is_never_reached_is_said(tmp_path):
    text = io.StringIO()
    fit(parse_recipe(override(SMALL, ["train.epochs=2"])), tmp_path, console=Console(file=text))
    assert "the run ends with epoch 2, and its schedule has tau at epoch 4" in text.getvalue()


def test_a_learned_tau_cannot_be_set():
    with pytest.raises(AttributeError, match="log_scale"):
        CLIP(learnable=True).tau = 0.1
    fixed = CLIP(tau=0.5)
    fixed.tau = 0.1
    z = torch.eye(3)
    assert fixed(z, z) == CLIP(tau=0.1)(z, z)
