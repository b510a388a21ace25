"""Runs with a momentum encoder and a queue: what is encoded by which, and that they resume bit-equal."""

import io
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console
from short_runs import two_steps

from counterpoint.models.encoder import build_encoder
from counterpoint.objectives import OBJECTIVES, InfoNCE
from counterpoint.train.checkpoint import checkpoints, load_checkpoint
from counterpoint.train.loop import fit
from counterpoint.train.momentum import Follower
from counterpoint.train.recipe import load_recipe, parse_recipe
from counterpoint.train.sections import Momentum

QUEUED = {"rate": 0.9, "schedule": "cosine", "queue": 40}  # neither a multiple nor a part of a batch


def recipe(momentum, objective="infonce", **train):
    plain = {"epochs": 3, "batch_size": 16, "log_every": 1, "save_every": 100, "accelerator": "cpu"}
    return parse_recipe(
        {
            "name": "small",
            "data": {"source": "shapes", "count": 64, "size": 32},
            "views": {"preset": "simclr_small", "size": 16},
            "model": {"backbone": "conv4", "head": [8]},
            "objective": objective,
            "momentum": momentum,
            "optim": {"lr": 0.01},
            "train": plain | train,
        }
    )


def quiet():
    return Console(file=io.StringIO())


def end_state(run):
    return load_checkpoint(checkpoints(run.checkpoints)[-1])


@pytest.mark.parametrize("stop", [1, 4, 6])
@pytest.mark.parametrize("momentum", [{"rate": 0.9}, QUEUED, {"rate": 0.5, "queue": 5}])
def test_resume_is_bit_equal(tmp_path, momentum, stop):
    whole = end_state(fit(recipe(momentum), tmp_path / "whole", console=quiet()))
    part = fit(recipe(momentum, save_every=1, keep=100), tmp_path / "part", console=quiet())
    for path in checkpoints(part.checkpoints)[stop:]:
        path.unlink()
    resumed = end_state(fit(recipe(momentum), tmp_path / "part", resume=True, console=quiet()))
    for name in ("encoder", "momentum"):
        tensors = {key: value for key, value in whole[name].items() if isinstance(value, torch.Tensor)}
        assert tensors
        assert all(torch.equal(resumed[name][key], value) for key, value in tensors.items())
        assert resumed[name].keys() == whole[name].keys()
    if "queue" in momentum:
        assert resumed["momentum"]["queue._extra_state"] == whole["momentum"]["queue._extra_state"]
        assert whole["momentum"]["queue._extra_state"]["filled"] == momentum["queue"]


class Seeing(InfoNCE):
    """InfoNCE that keeps what it was given."""

    given: list

    def evaluate(self, views, known, with_log):
        held = None if known.negatives is None else known.negatives.detach().clone()
        type(self).given.append((views, held))
        return super().evaluate(views, known, with_log)


def test_the_first_view_alone_has_a_gradient_and_the_queue_has_the_others_of_before(tmp_path, monkeypatch):
    kind = type("Seeing", (Seeing,), {"given": []})
    monkeypatch.setitem(OBJECTIVES, "seeing", kind)
    fit(recipe(QUEUED, "seeing"), tmp_path, console=quiet())
    steps = kind.given[1:]  # the first is the rehearsal
    assert len(steps) == 12
    past = torch.empty(0, 8)
    for (query, key), held in steps:
        assert query.requires_grad
        assert not key.requires_grad
        assert len(held) == min(len(past), 40)
        # All that is held are embeddings of the newest batches, each once, and no empty slot.
        newest = past[-40:]
        assert torch.equal(held[held[:, 0].argsort()], newest[newest[:, 0].argsort()])
        past = torch.cat([past, key])


def test_the_momentum_encoder_trails_the_trained_one(tmp_path):
    state = end_state(fit(recipe({"rate": 0.99}), tmp_path, console=quiet()))
    start = end_state(fit(recipe({"rate": 1.0}), tmp_path / "still", console=quiet()))
    name = "backbone.blocks.0.conv.weight"
    first, last = start["momentum"][f"encoder.average.{name}"], state["encoder"][name]
    between = state["momentum"][f"encoder.average.{name}"]
    assert 0 < (between - first).norm() < 0.2 * (last - first).norm()


@pytest.mark.parametrize("queue", [None, 8])
def test_the_momentum_encoder_normalises_by_the_batch(queue):
    """However the encoder was left: a run looks at it in evaluation mode before it begins."""
    follower = Follower(build_encoder("conv4", head=(8,), seed=0).eval(), 16, Momentum(queue=queue))
    other = build_encoder("conv4", head=(8,), seed=0).train()
    x = torch.randn(4, 3, 16, 16)
    assert torch.equal(follower.encoder(x)[1], other(x)[1])
    start = build_encoder("conv4", head=(8,), seed=0)
    follower = Follower(start, 16, Momentum(queue=queue))
    for ours, theirs in zip(follower.encoder.average.buffers(), start.buffers(), strict=True):
        assert torch.equal(ours, theirs)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"momentum\.rate.*less than or equal to 1"):
        recipe({"rate": 1.5})
    with pytest.raises(ValueError, match=r"momentum\.rate.*greater than or equal to 0"):
        recipe({"rate": -0.5})
    with pytest.raises(
        ValueError, match=r"momentum\.queue needs an objective that takes further candidates, info"
    ):
        recipe({"queue": 8}, "qare")
    assert recipe({}, "qare").momentum.rate == 0.99
    with pytest.raises(ValueError, match=r"momentum\.queue.*greater than or equal to 1"):
        recipe({"queue": 0})


def test_the_recipe_takes_two_steps(tmp_path):
    data = "data={source: shapes, count: 16, size: 32}"
    written, run, _ = two_steps("cifar100/moco", [data, "momentum.queue=12"], tmp_path)
    assert load_recipe("cifar100/moco").momentum.queue == 4096
    assert end_state(run)["momentum"]["queue._extra_state"] == {"filled": 12, "next": 4}
    assert written.momentum.queue == 12


def test_the_example_of_the_page_runs():
    page = (Path(__file__).parents[2] / "docs" / "momentum.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(block, names)
    assert len(names["queue"]) == 24
    assert torch.isfinite(names["loss"])
