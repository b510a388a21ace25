import csv
import io
import json
import re

import pytest
import torch
from PIL import Image
from rich.console import Console

from counterpoint.train.checkpoint import checkpoints, load_checkpoint
from counterpoint.train.compare import measure
from counterpoint.train.log import read_metrics
from counterpoint.train.loop import fit
from counterpoint.train.recipe import parse_recipe
from counterpoint.train.setup import fingerprint, load_encoder, load_splits


def recipe(**changes):
    plain = {
        "name": "small",
        "data": {"source": "shapes", "count": 96, "size": 32},
        "views": {
            "preset": "simclr_small",
            "size": 24,
            "crop_scale": [0.7, 1.0],
            "jitter_p": 0.0,
            "grey_p": 0.0,
        },
        "model": {"backbone": "conv4", "head": [16]},
        "objective": {"name": "ntxent", "tau": 0.2},
        "optim": {"lr": 0.01},
        "train": {"epochs": 4, "batch_size": 32, "log_every": 1, "save_every": 100},
    }
    return parse_recipe({key: {**value, **changes.pop(key, {})} if isinstance(value, dict) else value
                         for key, value in plain.items()} | changes)  # fmt: skip


def quiet():
    return Console(file=io.StringIO())


def end_state(run):
    return load_checkpoint(checkpoints(run.checkpoints)[-1])


def same(left, right):
    """Bit-equal, through nested dicts, lists and tensors."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


def test_training_lowers_the_loss_and_writes_the_log(tmp_path):
    run = fit(recipe(train={"epochs": 12}), tmp_path, console=quiet())
    rows = read_metrics(run.metrics)
    assert [row["step"] for row in rows] == list(range(1, 37))
    assert rows[-1]["epoch"] == 12
    assert rows[0]["chance"] == pytest.approx(torch.tensor(63.0).log().item(), rel=1e-5)
    first, last = (sum(r["loss"] for r in part) / 5 for part in (rows[:5], rows[-5:]))
    assert last < first - 0.5
    for row in rows:
        assert row["images_per_s"] > 0
        assert 0 <= row["data_wait"] <= 1
        assert 0 <= row["spread"] <= 1
        assert 0 <= row["accuracy"] <= 1
    with run.metrics.open() as handle:
        assert "" not in next(csv.reader(handle))


def test_two_runs_of_one_recipe_are_bit_equal(tmp_path):
    states = [end_state(fit(recipe(), tmp_path / name, console=quiet())) for name in "ab"]
    for state in states:
        del state["seconds"]
    assert same(*states)


@pytest.mark.parametrize("stop", [3, 4, 7])  # the end of an epoch, and the middle of two
@pytest.mark.parametrize("method", ["ntxent", "xclr"])
def test_resume_is_bit_equal(tmp_path, stop, method):
    extra = {
        "ntxent": {},
        "xclr": {"similarity": {"graph": "label"}, "objective": {"name": "xclr", "tau": 0.1}},
    }[method]
    whole = fit(recipe(**extra), tmp_path / "whole", console=quiet())
    # A run that was killed leaves the checkpoint of some step and perhaps log rows past it.
    part = fit(recipe(**extra, train={"save_every": 1, "keep": 100}), tmp_path / "part", console=quiet())
    for path in checkpoints(part.checkpoints)[stop:]:
        path.unlink()
    resumed = fit(recipe(**extra), tmp_path / "part", resume=True, console=quiet())
    ends = [end_state(whole), end_state(resumed)]
    for state in ends:
        del state["seconds"]
    assert same(*ends)
    columns = ("step", "epoch", "loss", "chance", "accuracy", "spread", "lr")
    rows = [[[row[c] for c in columns] for row in read_metrics(run.metrics)] for run in (whole, resumed)]
    assert rows[0] == rows[1]


def test_a_truncated_newest_checkpoint_is_skipped_aloud_and_the_end_is_the_same(tmp_path):
    whole = end_state(fit(recipe(), tmp_path / "whole", console=quiet()))
    run = fit(recipe(train={"save_every": 5, "keep": 3}), tmp_path / "cut", console=quiet())
    newest = checkpoints(run.checkpoints)[-1]
    newest.write_bytes(newest.read_bytes()[:-1000])
    text = io.StringIO()
    resumed = end_state(fit(recipe(), tmp_path / "cut", resume=True, console=Console(file=text)))
    assert "truncated" in text.getvalue()
    del whole["seconds"], resumed["seconds"]
    assert same(whole, resumed)


def test_methods_start_from_the_same_weights():
    starts = {
        fingerprint(
            load_encoder(
                parse_recipe(recipe().resolved() | {"objective": {"name": name}, "similarity": graph})
            )
        )
        for name, graph in (("ntxent", None), ("supcon", None), ("xclr", {"graph": "label"}))
    }
    assert len(starts) == 1
    assert fingerprint(load_encoder(recipe(seed=1))) not in starts


def test_steps_ends_a_run_early(tmp_path):
    run = fit(recipe(train={"steps": 2}), tmp_path, console=quiet())
    assert end_state(run)["step"] == 2


def test_no_epoch_at_all_leaves_the_encoder_as_it_starts(tmp_path):
    given = recipe(train={"epochs": 0})
    run = fit(given, tmp_path, console=quiet())
    encoder = load_encoder(given)
    start = fingerprint(encoder)
    encoder.load_state_dict(end_state(run)["encoder"])
    assert fingerprint(encoder) == start
    assert end_state(run)["step"] == 0
    assert read_metrics(run.metrics) == []
    assert {result.protocol for result in measure(run, quiet())} == {"knn", "linear"}


def test_layer_decay_and_head_rate_reach_the_steps(tmp_path):
    """Two steps: with a rate that falls to nothing the backbone stays and the head moves."""
    shared = {"train": {"steps": 2}, "data": {"count": 64}}
    still = recipe(optim={"name": "sgd", "lr": 0.1, "layer_decay": 1e-12, "head_lr": 0.3}, **shared)
    ends = {}
    for name, given in (("still", still), ("usual", recipe(optim={"name": "sgd", "lr": 0.1}, **shared))):
        run = fit(given, tmp_path / name, console=quiet())
        ends[name] = end_state(run)["encoder"]
    start = load_encoder(still).state_dict()

    def moved(name, key):
        return float((ends[name][key] - start[key]).abs().max())

    assert (
        moved("still", "backbone.blocks.0.conv.weight")
        < 1e-9
        < moved("usual", "backbone.blocks.0.conv.weight")
    )
    assert moved("still", "head.linear1.weight") > 1.5 * moved("usual", "head.linear1.weight")


def test_fewer_samples_than_a_batch_says_both_numbers(tmp_path):
    with pytest.raises(ValueError, match=r"96.*128|128.*96"):
        fit(recipe(train={"batch_size": 128}), tmp_path / "run", console=quiet())
    assert not (tmp_path / "run").exists()


def test_numbers_that_are_not_finite_stop_the_run(tmp_path):
    with pytest.raises(ValueError, match=r"are not finite at step \d+ \(learning rate 1e\+30\)"):
        fit(recipe(optim={"name": "sgd", "lr": 1e30, "schedule": "constant"}), tmp_path, console=quiet())


def test_a_run_at_chance_says_so_once(tmp_path):
    text = io.StringIO()
    fit(
        recipe(optim={"lr": 1e-12}, train={"epochs": 12}, objective={"tau": 1e4}),
        tmp_path,
        console=Console(file=text),
    )
    assert text.getvalue().count("at chance") == 1


def test_bf16_trains(tmp_path):
    run = fit(recipe(train={"precision": "bf16-mixed", "epochs": 1}), tmp_path, console=quiet())
    assert end_state(run)["step"] == 3


def test_a_batch_that_is_down_to_one_sample_is_passed_over_and_counted(tmp_path):
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for i in range(10):
        Image.new("RGB", (80, 80), (25 * i, 9, 99)).save(pictures / f"{i}.png")
    files = {
        "name": "files",
        "data": {
            "source": "folder",
            "path": str(pictures),
            "train": None,
            "holdout": 0.2,
            "on_error": "skip",
        },
        "views": {"preset": "simclr_small", "size": 16},
        "model": {"backbone": "conv4", "head": [8]},
        "objective": [{"name": "ntxent"}, {"name": "qare", "weight": 0.5}],
        "train": {"epochs": 3, "batch_size": 2, "workers": 0, "log_every": 1, "save_every": 1, "keep": 20},
    }
    gone = load_splits(parse_recipe(files).data).train.keys[0]
    (pictures / gone).write_bytes(b"")
    said = Console(file=io.StringIO(), width=200)
    whole = fit(parse_recipe(files), tmp_path / "whole", console=said)
    text = said.file.getvalue()
    assert text.count("one sample is left of its batch, '") == 3
    assert "skipped 3 of 12 steps, whose loss was not finite or whose batch was down to one" in text
    assert f"skipped 1 broken pictures, the first is {gone}" in text
    done = json.loads(whole.done.read_text())
    assert (done["steps"], done["skipped"]) == (12, 3)
    end = end_state(whole)
    assert {int(entry["step"]) for entry in end["optimizer"]["state"].values()} == {9}
    passed = [int(step) for step in re.findall(r"step (\d+): one sample", text)]
    assert [row["step"] for row in read_metrics(whole.metrics)] == [
        s for s in range(1, 13) if s not in passed
    ]
    # Taken up again from just before such a step, and from just after it, the run ends the same.
    for left in (passed[1], passed[1] - 1):
        for path in checkpoints(whole.checkpoints)[left:]:
            path.unlink()
        again = end_state(fit(parse_recipe(files), tmp_path / "whole", resume=True, console=quiet()))
        assert same(end | {"seconds": 0}, again | {"seconds": 0})


def test_first_samples_of_different_labels_do_not_refuse_a_run_of_one_view(tmp_path):
    one_view = recipe(
        data={"seed": 1},
        views={"count": 1},
        objective={"name": "supcon"},
        train={"epochs": 1, "log_every": 3},
    )
    assert len(set(load_splits(one_view.data).train.column().values[:4].tolist())) == 4
    assert end_state(fit(one_view, tmp_path, console=quiet()))["step"] == 3


def test_clipping_and_lars(tmp_path):
    optim = {"name": "lars", "lr": 0.1, "lr_scaling": "sqrt", "clip": 0.5, "warmup_epochs": 1}
    run = fit(recipe(optim=optim), tmp_path, console=quiet())
    assert read_metrics(run.metrics)[3]["lr"] == pytest.approx(0.1 * 32**0.5, rel=0.05)


def test_supcon_needs_labels_and_says_what_the_data_has(tmp_path):
    plain = recipe().resolved()
    asked = parse_recipe(
        plain | {"objective": {"name": "supcon"}, "data": plain["data"] | {"label": "shade"}}
    )
    with pytest.raises(ValueError, match=r"no label column 'shade'; it has object"):
        fit(asked, tmp_path, console=quiet())
