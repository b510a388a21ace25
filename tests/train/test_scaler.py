"""Runs in 16 bits, whose loss is scaled: a step that the scaler leaves out, and what of the run goes on.

On a CPU Fabric takes bfloat16 in place of it. Here the same plugin and torch's own scaler run on the CPU.
"""

import io
import itertools

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from not_finite import Sometimes, recipe
from rich.console import Console

from counterpoint.objectives import OBJECTIVES
from counterpoint.train import loop
from counterpoint.train.checkpoint import checkpoints, load_checkpoint
from counterpoint.train.log import read_metrics
from counterpoint.train.loop import fit
from counterpoint.train.nonfinite import IN_A_ROW
from counterpoint.train.recipe import parse_recipe

STEPS, START = 12, 2.0**10


@pytest.fixture
def halves(monkeypatch):
    """Make `fit` compute in float16, with a gradient that overflows at some steps."""

    def use(overflows, growth_interval=100):
        def build(train):
            scaler = torch.amp.GradScaler("cpu", init_scale=START, growth_interval=growth_interval)
            return Fabric(accelerator="cpu", devices=1, plugins=[MixedPrecision("16-mixed", "cpu", scaler)])

        monkeypatch.setattr(loop, "build_fabric", build)
        kind = type("Sometimes", (Sometimes,), {"bad": dict.fromkeys(overflows, "gradient")})
        monkeypatch.setitem(OBJECTIVES, "sometimes", kind)

    return use


def quiet():
    return Console(file=io.StringIO())


def with_momentum(**train):
    plain = recipe(log_every=1, **train).resolved()
    return parse_recipe(plain | {"momentum": {"rate": 0.9, "schedule": "cosine", "queue": 1000}})


def states(run):
    return [load_checkpoint(path) for path in checkpoints(run.checkpoints)]


@pytest.mark.parametrize("policy", ["stop", "skip"])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_step_that_overflows_leaves_the_weights_and_counts_for_the_rest(tmp_path, halves, policy, clip):
    halves([3])
    run = fit(recipe(optim={"clip": clip}, save_every=1, keep=100, on_nan=policy), tmp_path, console=quiet())
    saved = states(run)
    weights = [{k: v for k, v in state["encoder"].items() if k.endswith("weight")} for state in saved]
    changed = [any(not torch.equal(a[k], b[k]) for k in a) for a, b in itertools.pairwise(weights)]
    assert changed == [True, False, *[True] * 9]  # from step 2 to step 3 nothing
    assert all(torch.isfinite(v).all() for v in weights[-1].values())
    assert {int(entry["step"]) for entry in saved[-1]["optimizer"]["state"].values()} == {STEPS - 1}
    assert [state["scaler"]["scale"] for state in saved] == [START] * 2 + [START / 2] * 10
    assert [state["skipped"] for state in saved] == [0] * STEPS


def test_the_rate_the_momentum_encoder_and_the_queue_go_on(tmp_path, halves):
    ends = {}
    for name, overflows in (("none", []), ("one", [3])):
        halves(overflows)
        ends[name] = fit(with_momentum(save_every=1, keep=100), tmp_path / name, console=quiet())
    rates = [[row["lr"] for row in read_metrics(run.metrics)] for run in ends.values()]
    assert rates[0] == rates[1]
    assert len(rates[0]) == STEPS
    before, after = states(ends["one"])[1:3]
    assert after["momentum"]["queue._extra_state"] == {"filled": 3 * 16, "next": 3 * 16}
    name = "backbone.blocks.0.conv.weight"
    assert torch.equal(before["encoder"][name], after["encoder"][name])
    slow = [state["momentum"][f"encoder.average.{name}"] for state in (before, after)]
    gap = [float((weights - after["encoder"][name]).norm()) for weights in slow]
    assert 0 < gap[1] < gap[0]
    assert all(torch.isfinite(v).all() for k, v in after["momentum"].items() if isinstance(v, torch.Tensor))


def test_a_resumed_run_goes_on_with_the_scale_it_had(tmp_path, halves):
    ends = {}
    for name in ("whole", "part"):
        halves([2], growth_interval=4)  # halved once, then doubled twice
        ends[name] = fit(recipe(save_every=1, keep=100), tmp_path / name, console=quiet())
    for path in checkpoints(ends["part"].checkpoints)[5:]:
        path.unlink()
    halves([], growth_interval=4)
    resumed = states(fit(recipe(), tmp_path / "part", resume=True, console=quiet()))[-1]
    whole = states(ends["whole"])[-1]
    assert whole["scaler"]["scale"] == 2 * START
    assert resumed["scaler"] == whole["scaler"]
    assert all(torch.equal(resumed["encoder"][name], whole["encoder"][name]) for name in whole["encoder"])


def test_a_gradient_that_no_scale_makes_finite_ends_the_run(tmp_path, halves):
    halves(range(1, 100))
    with pytest.raises(ValueError, match=r"the gradients are not finite at step 36 .* has fallen to 1e-08"):
        fit(recipe(epochs=12), tmp_path, console=quiet())
    assert checkpoints(tmp_path / "checkpoints") == []


def test_skipped_steps_are_in_a_row_only_where_none_is_taken_between(tmp_path, monkeypatch, halves):
    halves([])
    every_other = dict.fromkeys(range(1, 2 * IN_A_ROW + 6, 2), "loss")
    monkeypatch.setitem(OBJECTIVES, "sometimes", type("Sometimes", (Sometimes,), {"bad": every_other}))
    run = fit(recipe(epochs=15, on_nan="skip"), tmp_path, console=quiet())
    assert states(run)[-1]["skipped"] == len(every_other) > IN_A_ROW
