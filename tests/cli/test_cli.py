import json
import os
import subprocess
import sys

import pytest
import yaml
from command_line import TINY, refused
from PIL import Image


@pytest.mark.parametrize(
    "words",
    [(), ("train",), ("evaluate",), ("compare",), ("report",), ("audit",), ("recipes",), ("recipes", "copy")],
)
def test_every_command_has_help_with_an_example(counterpoint, words):
    code, out, _ = counterpoint(*words, "--help")
    assert code == 0
    if words not in ((), ("recipes",)):
        assert "Example" in out
        assert f"counterpoint {' '.join(words)}" in out


def test_train_evaluate_report(counterpoint, tmp_path):
    folder = tmp_path / "run"
    code, out, err = counterpoint("train", "demo/simclr", "--out", folder, *TINY)
    assert code == 0, err
    assert "object" in out
    assert str(folder) in out
    results = json.loads((folder / "results.json").read_text())
    assert {r["protocol"] for r in results} == {"knn", "linear"}
    before = (folder / "results.json").read_text()
    code, out, err = counterpoint("evaluate", folder)
    assert code == 0, err
    assert (folder / "results.json").read_text() == before
    code, out, err = counterpoint("report", folder, "--out", tmp_path / "page.html")
    assert code == 0, err
    assert (tmp_path / "page.html").stat().st_size > 10_000
    refused(counterpoint("report", folder, "--out", tmp_path / "page.html"), "page.html")
    refused(counterpoint("train", "demo/simclr", "--out", folder, *TINY), "--resume", "--overwrite")


def test_compare_prints_one_table_and_writes_one_report(counterpoint, tmp_path):
    words = ("compare", "demo", "--seeds", "0,1", "--out", tmp_path / "c", *TINY)
    code, out, err = counterpoint(*words)
    assert code == 0, err
    for name in ("simclr", "supcon", "xclr", "±", "report.html"):
        assert name in out
    starts = [
        json.loads(path.read_text())["start"] for path in sorted((tmp_path / "c").rglob("seed-0/done.json"))
    ]
    assert len(starts) == 3
    assert len(set(starts)) == 1
    refused(counterpoint(*words), "--resume", "--overwrite")
    # Resuming a comparison that is whole trains nothing and gives the same table.
    code, again, err = counterpoint(*words, "--resume")
    assert code == 0
    assert again == out


def test_an_ablation_is_one_table_one_file_and_one_plot(counterpoint, tmp_path):
    out = tmp_path / "c"
    words = ("compare", "demo/simclr", "demo/xclr", "--vary", "objective.tau_s=0.1,0.4", "--seeds", "0",
             "--out", out, *TINY)  # fmt: skip
    code, planned, err = counterpoint(*words, "--dry-run")
    assert code == 0, err
    assert "xclr-tau_s-0.4: objective.tau_s=0.4" in planned
    assert "simclr: as it is" in planned
    assert not out.exists()
    code, printed, err = counterpoint(*words)
    assert code == 0, err
    rows = [line for line in printed.splitlines() if "clr" in line and "│" in line]
    assert [row.split("│")[1].strip() for row in rows] == ["simclr", "xclr-tau_s-0.1", "xclr-tau_s-0.4"]
    table = (out / "ablation.csv").read_text().splitlines()
    assert len(table) == 1 + 3 * 3  # kNN at two k, and the linear probe
    page = (out / "report.html").read_text()
    assert 'id="ablation"' in page
    code, again, err = counterpoint(*words, "--resume")
    assert code == 0, err
    assert again == printed
    wrong = counterpoint(*words, "--overwrite", "--vary", "objective.speed=1,2")
    refused(wrong, "--vary objective.speed", "speed")


def test_resuming_a_comparison_measures_what_is_asked_for_now(counterpoint, tmp_path):
    words = ("compare", "demo/simclr", "--seeds", "0", "--out", tmp_path / "c", *TINY)
    code, _, err = counterpoint(*words)
    assert code == 0, err
    code, out, err = counterpoint(*words, "--resume", "evaluate.columns=[texture]", "evaluate.k=[3]")
    assert code == 0, err
    assert "texture" in out
    assert "k=3" in out
    assert "object" not in out


def test_results_of_a_half_trained_run_do_not_outlive_it(counterpoint, tmp_path):
    words = ("compare", "demo/simclr", "--seeds", "0", "--out", tmp_path / "c", *TINY)
    folder = tmp_path / "c" / "simclr" / "seed-0"
    code, _, _ = counterpoint(*words, "train.save_every=1", "train.keep=9")
    assert code == 0
    for path in sorted((folder / "checkpoints").iterdir())[1:]:
        path.unlink()
    (folder / "done.json").unlink()
    code, _, err = counterpoint("evaluate", folder)
    assert code == 0
    assert "has not ended" in err
    early = (folder / "results.json").read_text()
    code, _, err = counterpoint(*words, "--resume")
    assert code == 0, err
    assert (folder / "results.json").read_text() != early


def test_files_that_are_not_ours_are_left_alone(counterpoint, tmp_path):
    (tmp_path / "metrics.csv").write_text("mine")
    refused(counterpoint("train", "demo/simclr", "--out", tmp_path, *TINY), "--overwrite")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "report.html").write_text("mine")
    refused(
        counterpoint("compare", "demo/simclr", "--seeds", "0", "--out", tmp_path / "c", *TINY), "report.html"
    )
    assert (tmp_path / "c" / "report.html").read_text() == "mine"


def test_dry_run_writes_nothing(counterpoint, tmp_path):
    code, out, _ = counterpoint("train", "demo/xclr", "--dry-run", "--out", tmp_path / "run", "optim.lr=0.5")
    assert code == 0
    assert yaml.safe_load(out)["optim"]["lr"] == 0.5
    assert str(tmp_path / "run") in out
    assert not (tmp_path / "run").exists()
    code, out, _ = counterpoint("compare", "imagenet", "--dry-run", "--out", tmp_path / "c")
    assert code == 0
    assert "seed-2" in out
    assert not (tmp_path / "c").exists()


def test_recipes(counterpoint, tmp_path):
    _, out, _ = counterpoint("recipes", "list")
    assert {"demo/xclr", "cifar100/supcon", "imagenet/simclr"} <= set(out.split())
    _, out, _ = counterpoint("recipes", "show", "imagenet/xclr")
    assert yaml.safe_load(out)["optim"]["name"] == "lars"
    code, _, _ = counterpoint("recipes", "copy", "demo/xclr", tmp_path / "mine.yaml")
    assert code == 0
    code, _, _ = counterpoint("train", tmp_path / "mine.yaml", "--dry-run")
    assert code == 0
    refused(counterpoint("recipes", "copy", "demo/xclr", tmp_path / "mine.yaml"), "exists already")
    refused(counterpoint("recipes", "copy", "demo", tmp_path / "other.yaml"), "is a group")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("train", "demo/xlcr"), ("demo/xlcr", "demo/xclr")),
        (("train", "demo"), ("group of 3",)),
        (("train", "absent.yaml"), ("absent.yaml",)),
        (("train", "demo/xclr", "optim.lrr=1"), ("optim.lrr", "'lr'")),
        (("train", "demo/xclr", "objective.tau=0"), ("tau", "0")),
        (("train", "demo/xclr", "train.epochs=x"), ("train.epochs", "'x'")),
        (("train", "demo/xclr", "model.backbone=resnet19"), ("resnet19", "resnet18")),
        (("train", "demo/xclr", "train.batch_size=5000"), ("3000", "5000")),
        (("train", "demo/xclr", "nonsense"), ("key=value",)),
        (("train", "demo/xclr", "evaluate.k=[0]"), ("evaluate.k", "0")),
        (("train", "demo/simclr", "views.count=1", *TINY), ("NTXent", "2 view")),
        (("train", "demo/simclr", *TINY, "views.size=4"), ("conv4", "8x8")),
        (("train", "demo/simclr", "views.size=1000000"), ("views.size", "1000000")),
        (("train", "demo/xclr", "evaluate.temperature=.inf"), ("evaluate.temperature", "inf")),
        (("train", "demo/xclr", "train.accelerator=tpu"), ("train.accelerator", "tpu")),
        (("evaluate", "absent"), ("absent", "not a run")),
        (("report", "absent"), ("no run",)),
        (("compare", "demo", "--seeds", "0,0"), ("seeds", "0, 0")),
        (("compare", "demo", "--seeds", "a"), ("'a'",)),
        (("compare", "demo", "--seeds=0,-1"), ("from 0", "-1")),
        (("compare", "demo", "--seeds=9223372036854775808"), ("2^63",)),
        (("compare", "optim.lr=1"), ("name at least one recipe",)),
        (("compare", "demo", "demo/xclr"), ("same name, xclr", "`name: ...`")),
        (("compare", "demo", "demo/xclr", "--dry-run"), ("same name, xclr",)),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(counterpoint, tmp_path, monkeypatch, words, parts):
    monkeypatch.chdir(tmp_path)
    result = counterpoint(*words)
    refused(result, *parts)
    assert "objective:" not in result[1]
    assert not (tmp_path / "runs").exists()


def test_results_are_told_apart(capsys):
    from counterpoint.cli import _print_results
    from counterpoint.evaluate import Result

    def one(protocol, metric="accuracy", **settings):
        settings = {"column": "identity", **settings}
        return Result(protocol=protocol, version=1, metric=metric, value=0.5, n=2, settings=settings)

    way = {"direction": "a to b"}
    _print_results([one("knn", k=5), one("matching", "recall", k=1, **way), one("matching", "mAP", **way)])
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["identity", "knn", "k=5", "50.00", "%"],
        ["identity", "matching", "recall@1,", "a", "to", "b", "50.00", "%"],
        ["identity", "matching", "mAP,", "a", "to", "b", "50.00", "%"],
    ]


def pictures(folder, count=70):
    for i in range(count):
        path = folder / ("cat" if i % 2 else "dog") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20 + i % 3, 24), (i, 2 * i, 255 - i)).save(path)


def test_a_folder_of_pictures_trains_as_it_is(counterpoint, tmp_path):
    pictures(tmp_path / "p")
    data = f"data={{source: folder, path: {tmp_path / 'p'}, train: null, holdout: 0.4}}"
    words = ("train", "demo/simclr", data, *TINY[2:-2], "optim.warmup_epochs=0", "evaluate.columns=null")
    code, out, err = counterpoint(*words, "--out", tmp_path / "run")
    assert code == 0, err
    assert "knn" in out
    assert "linear" in out


def test_a_flat_folder_without_labels_gives_features(counterpoint, tmp_path):
    pictures(tmp_path / "p" / "all")
    data = f"data={{source: folder, path: {tmp_path / 'p'}, labelled: false, train: null, holdout: 0.4}}"
    words = ("train", "demo/simclr", data, *TINY[2:-2], "optim.warmup_epochs=0", "evaluate.columns=null")
    code, _, err = counterpoint(*words, "--out", tmp_path / "run")
    assert code == 0, err
    assert "no labels" in err
    assert (tmp_path / "run" / "features.npz").exists()


def test_broken_pictures_are_skipped_from_training_to_report(counterpoint, tmp_path):
    for i in range(70):  # above 64 pixels, so that they are decoded when asked for
        path = tmp_path / "p" / ("cat" if i % 2 else "dog") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((80, 70), 60).convert("RGB").save(path)
    broken = tmp_path / "p" / "cat" / "1.png"
    broken.write_bytes(broken.read_bytes()[:500])
    data = f"data={{source: folder, path: {tmp_path / 'p'}, train: null, holdout: 0.4, on_error: %s}}"
    words = (*TINY[2:-2], "optim.warmup_epochs=0", "evaluate.columns=null", "train.workers=0")
    out = ("--out", tmp_path / "run")
    refused(
        counterpoint("train", "demo/simclr", data % "stop", *words, "--out", tmp_path / "other"), "cat/1.png"
    )
    code, _, err = counterpoint("train", "demo/simclr", data % "skip", *words, *out)
    assert code == 0, err
    assert "1 pictures could not be read and were left out of the evaluation" in err
    code, _, err = counterpoint("report", tmp_path / "run")
    assert code == 0, err


def test_missing_labels_are_refused_before_training(counterpoint, tmp_path):
    pictures(tmp_path / "p" / "all")
    data = f"data={{source: folder, path: {tmp_path / 'p'}, labelled: false, train: null, holdout: 0.4}}"
    words = ("train", "demo/simclr", data, *TINY[2:], "--out", tmp_path / "run")
    refused(counterpoint(*words), "evaluate.columns=null")
    assert not (tmp_path / "run").exists()


def test_one_split_for_both_needs_a_holdout(counterpoint, tmp_path):
    refused(
        counterpoint(
            "train", "demo/simclr", f"data={{source: folder, path: {tmp_path}, train: null, test: null}}"
        ),
        "data.holdout",
    )


@pytest.mark.skipif(
    os.geteuid() == 0 and not sys.platform.startswith("linux"), reason="needs a read-only place"
)
def test_a_place_that_cannot_be_written(counterpoint, tmp_path):
    (tmp_path / "file").write_text("in the way")
    refused(counterpoint("train", "demo/simclr", "--out", tmp_path / "file" / "run", *TINY), "file")


def test_the_installed_command_runs():
    done = subprocess.run(
        [sys.executable, "-m", "counterpoint.cli", "recipes", "list"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "demo/xclr" in done.stdout
