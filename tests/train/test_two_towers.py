"""Runs with a text tower: the caption is a view, the temperature is learned, and resuming changes no bit."""

import pytest
import torch
from short_runs import quiet

from counterpoint.train.checkpoint import checkpoints, load_checkpoint
from counterpoint.train.log import read_metrics
from counterpoint.train.loop import fit
from counterpoint.train.optim import build_optimizer
from counterpoint.train.recipe import override, parse_recipe
from counterpoint.train.setup import load_encoder

PLAIN = {
    "name": "towers",
    "data": {"source": "shapes", "count": 96, "size": 32},
    "views": {"preset": "simclr_small", "size": 24, "count": 1, "crop_scale": [0.7, 1.0], "jitter_p": 0.0},
    "model": {
        "backbone": "conv4",
        "head": [16],
        "text": {"width": 32, "layers": 1, "heads": 2, "max_length": 24},
    },
    "objective": {"name": "clip", "tau": 0.1, "learnable": True},
    "optim": {"lr": 0.003, "weight_decay": 0.1},
    "train": {"epochs": 4, "batch_size": 32, "log_every": 1, "save_every": 100, "workers": 0},
}


def recipe(*words):
    return parse_recipe(override(PLAIN, words))


def end_state(run):
    state = load_checkpoint(checkpoints(run.checkpoints)[-1])
    del state["seconds"]
    return state


def same(left, right):
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


def test_training_pairs_pictures_with_captions(tmp_path):
    run = fit(recipe("train.epochs=14"), tmp_path, console=quiet())
    rows = read_metrics(run.metrics)
    # 32 captions to choose from, and no other view.
    assert rows[0]["chance"] == pytest.approx(torch.tensor(32.0).log().item(), rel=1e-5)
    first, last = (sum(row["loss"] for row in part) / 6 for part in (rows[:6], rows[-6:]))
    assert last < first - 0.3
    # The temperature is logged, and moves.
    assert rows[0]["tau"] == pytest.approx(0.1, rel=1e-4)
    assert abs(rows[-1]["tau"] - 0.1) > 1e-4
    weights = end_state(run)["encoder"]
    start = load_encoder(run.recipe).state_dict()
    for part in ("backbone.", "head.", "text.backbone.layers.", "text.head."):
        assert any(not torch.equal(v, start[k]) for k, v in weights.items() if k.startswith(part))


def test_the_scale_is_trained_without_weight_decay():
    wanted = recipe()
    objective = wanted.build_objective()
    trained = torch.nn.ModuleDict({"encoder": load_encoder(wanted), "objective": objective})
    decayed, bare = build_optimizer(trained, "adamw", lr=0.1, weight_decay=0.1).param_groups
    assert any(p is objective.log_scale for p in bare["params"])
    assert bare["weight_decay"] == 0
    assert not any(p is objective.log_scale for p in decayed["params"])


def test_resume_is_bit_equal(tmp_path):
    words = ("train.epochs=2", "train.save_every=1", "train.keep=9")
    whole = fit(recipe(*words), tmp_path, console=quiet())
    end = end_state(whole)
    for stop in (5, 3, 1):  # within an epoch, at the end of one, and within the first
        for path in checkpoints(whole.checkpoints)[stop:]:
            path.unlink()
        resumed = fit(recipe(*words), tmp_path, resume=True, console=quiet())
        assert same(end_state(resumed), end)


@pytest.mark.parametrize(
    ("words", "views"),
    [
        (["objective={name: infonce, tau: 0.1}"], 1),
        (["objective=[{name: infonce, tau: 0.1}, {name: qare, weight: 0.5}]"], 1),
        (["objective={name: sparseclr}"], 1),
        (["objective=[{name: triplet}, {name: qare, weight: 0.5}]"], 1),
        (["objective={name: ntlogistic}"], 1),
        (["objective={name: xclr}", "similarity={graph: caption}"], 1),
        (["objective={name: ntxent}", "views.count=2"], 2),
    ],
)
def test_any_objective_takes_the_caption_as_a_view(tmp_path, words, views):
    run = fit(recipe("train.steps=2", *words), tmp_path, console=quiet())
    rows = read_metrics(run.metrics)
    assert [row["step"] for row in rows] == [1, 2]
    if views == 2:
        assert rows[0]["chance"] == pytest.approx(torch.tensor(95.0).log().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["views.count=2"], "CLIP takes exactly 2 views"),
        (["model.text.heads=3"], "heads=3"),
        (["model.text.hedas=3"], "did you mean 'heads'"),
        (["model.text.head=[8]"], "ends with 8, that of pictures with 16"),
        (["data={source: torchvision, name: fake, root: .}"], "fake"),
    ],
)
def test_what_is_refused_leaves_no_folder(tmp_path, words, message):
    with pytest.raises(ValueError, match=message):
        fit(recipe(*words), tmp_path / "run", console=quiet())
    assert not (tmp_path / "run").exists()
