"""Losses that are not finite: every step is looked at, the batch is written down, or the step is left out."""

import io
import json
from types import SimpleNamespace

import pytest
import torch
from not_finite import Sometimes, recipe
from rich.console import Console
from safetensors.torch import load_file
from torch import nn

from counterpoint.objectives import OBJECTIVES, NTXent
from counterpoint.train.checkpoint import checkpoints, load_checkpoint
from counterpoint.train.log import read_metrics
from counterpoint.train.loop import fit
from counterpoint.train.nonfinite import IN_A_ROW, FiniteLoss, Seen


@pytest.fixture
def sometimes(monkeypatch):
    def use(bad):
        kind = type("Sometimes", (Sometimes,), {"bad": bad})
        monkeypatch.setitem(OBJECTIVES, "sometimes", kind)
        return kind

    return use


@pytest.mark.parametrize("step", [3, 5])  # one that is logged, and one that is not
def test_a_loss_that_is_not_finite_stops_with_the_batch(tmp_path, sometimes, step):
    sometimes({step: "loss"})
    with pytest.raises(ValueError, match=f"the loss is not finite at step {step} ") as error:
        fit(recipe(), tmp_path, console=Console(file=io.StringIO()))
    folder = tmp_path / f"nan-step-{step}"
    assert str(folder) in str(error.value)
    words, tensors = json.loads((folder / "batch.json").read_text()), load_file(folder / "batch.safetensors")
    assert words["step"] == step
    assert len(words["keys"]) == 16
    assert repr(words["keys"][0]) in str(error.value)
    assert tensors["ids"].shape == (16,)
    assert tensors["view_0"].shape == tensors["view_1"].shape == (16, 8)
    assert float(words["loss"]["chance"]) > 0
    # The loss can be found again from what was written down.
    again = NTXent()(tensors["view_0"], tensors["view_1"])
    assert torch.isfinite(again)
    assert checkpoints(tmp_path / "checkpoints") == []


@pytest.mark.parametrize("clip", [None, 1.0])
def test_no_weights_are_saved_that_a_gradient_has_broken(tmp_path, sometimes, clip):
    sometimes({4: "gradient"})
    with pytest.raises(ValueError, match="the gradient is not finite at step 4 "):
        fit(recipe(optim={"clip": clip}, save_every=2), tmp_path, console=Console(file=io.StringIO()))
    assert [path.stem for path in checkpoints(tmp_path / "checkpoints")] == ["step-00000002"]
    assert (tmp_path / "nan-step-4").is_dir()


def test_weights_that_diverged_are_told_from_a_loss_that_did(tmp_path):
    optim = {"name": "sgd", "lr": 1e30, "schedule": "constant"}
    with pytest.raises(
        ValueError, match=r"the embeddings are not finite at step \d+ \(learning rate 1e\+30\)"
    ):
        fit(recipe("ntxent", optim), tmp_path, console=Console(file=io.StringIO()))
    assert len(list(tmp_path.glob("nan-step-*"))) == 1


def test_steps_are_skipped_counted_and_said(tmp_path, sometimes):
    kind = sometimes({1: "loss", 5: "gradient", 6: "loss"})
    said = io.StringIO()
    run = fit(recipe(on_nan="skip"), tmp_path, console=Console(file=said))
    assert kind.calls == 13
    assert said.getvalue().count("is not finite, skipped (") == 3
    assert "step 6: the loss or its gradient is not finite, skipped (3 so far): samples " in said.getvalue()
    assert "skipped 3 of 12 steps, whose loss was not finite" in said.getvalue()
    rows = read_metrics(run.metrics)
    assert [(row["step"], row["skipped"]) for row in rows] == [(3, 1), (9, 3), (12, 3)]
    assert json.loads(run.done.read_text())["skipped"] == 3
    state = load_checkpoint(checkpoints(run.checkpoints)[-1])
    assert state["skipped"] == 3
    assert all(torch.isfinite(tensor).all() for tensor in state["encoder"].values())
    # Twelve steps less three moved the weights.
    assert {int(entry["step"]) for entry in state["optimizer"]["state"].values()} == {9}


def test_steps_that_are_all_skipped_stop_the_run(tmp_path, sometimes):
    sometimes(dict.fromkeys(range(1, 100), "loss"))
    with pytest.raises(ValueError, match=f"nor were they at the {IN_A_ROW - 1} steps before it"):
        fit(recipe(on_nan="skip", epochs=40), tmp_path, console=Console(file=io.StringIO()))
    assert (tmp_path / f"nan-step-{IN_A_ROW}").is_dir()


def test_a_run_without_such_losses_is_the_same_under_both(tmp_path, sometimes):
    ends = []
    for name in ("stop", "skip"):
        sometimes({})
        run = fit(recipe(on_nan=name), tmp_path / name, console=Console(file=io.StringIO()))
        ends.append(load_checkpoint(checkpoints(run.checkpoints)[-1])["encoder"])
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


def test_a_skipped_step_leaves_the_running_moments_as_they_were(tmp_path):
    trained = nn.ModuleDict({"encoder": nn.BatchNorm1d(2), "objective": NTXent()})
    before = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    watch = FiniteLoss("skip", tmp_path, ["a", "b"], trained, lambda line: None)
    watch.begin()
    z = trained["encoder"](torch.full((2, 2), float("nan")))
    assert not torch.isfinite(trained["encoder"].running_mean).any()
    assert not watch.passes(Seen(1, 0.1, torch.arange(2), [z.detach()], {}, z.sum()))
    assert all(torch.equal(tensor, before[name]) for name, tensor in trained.state_dict().items())


def test_of_two_steps_the_earlier_is_told(tmp_path):
    """On a GPU a loss is read a step later, and the embeddings of that step may be refused by then."""
    trained = nn.ModuleDict({"encoder": nn.Linear(2, 2), "objective": NTXent()})
    watch = FiniteLoss("stop", tmp_path, ["a", "b"], trained, lambda line: None)
    nan = torch.full((2, 2), float("nan"))
    first, second = (Seen(step, 0.1, torch.arange(2), [nan], {}, None) for step in (1, 2))
    arrived = SimpleNamespace(synchronize=lambda: None)  # the event of a copy that is done
    watch._pending = (first, torch.tensor(False), arrived)
    with pytest.raises(ValueError, match="not finite at step 1 "):
        watch.passes(second)
