import pytest

from counterpoint.train.recipe import parse_recipe
from counterpoint.train.run import Run, claim, differences

PLAIN = {"name": "small", "data": {"source": "shapes", "count": 300}, "objective": {"name": "ntxent"}}
RECIPE = parse_recipe(PLAIN)


def test_a_new_folder_is_claimed(tmp_path):
    run = claim(tmp_path / "a" / "b", RECIPE, resume=False, overwrite=False)
    assert run.recipe == RECIPE


def test_a_folder_with_a_run_is_refused(tmp_path):
    claim(tmp_path, RECIPE, resume=False, overwrite=False)
    with pytest.raises(ValueError, match="--resume or replace it with --overwrite"):
        claim(tmp_path, RECIPE, resume=False, overwrite=False)
    with pytest.raises(ValueError, match="exclude each other"):
        claim(tmp_path, RECIPE, resume=True, overwrite=True)


def test_overwriting_removes_the_run_and_nothing_else(tmp_path):
    run = claim(tmp_path, RECIPE, resume=False, overwrite=False)
    run.checkpoints.mkdir()
    (run.checkpoints / "step-00000001.safetensors").write_bytes(b"old")
    run.results.write_text("[]")
    (tmp_path / "notes.txt").write_text("mine")
    claim(tmp_path, RECIPE, resume=False, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "recipe.yaml"]


def test_another_recipe_does_not_resume(tmp_path):
    claim(tmp_path, RECIPE, resume=False, overwrite=False)
    other = parse_recipe(PLAIN | {"optim": {"lr": 0.5}})
    with pytest.raises(ValueError, match=r"optim\.lr was 0\.001, now 0\.5"):
        claim(tmp_path, other, resume=True, overwrite=False)
    assert Run(tmp_path).recipe == RECIPE


def test_what_does_not_change_the_result_may_differ():
    other = parse_recipe(PLAIN | {"train": {"workers": 7, "keep": 5}, "evaluate": {"k": [3]}})
    assert differences(RECIPE, other) == []


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(ValueError, match="is not a run"):
        _ = Run(tmp_path).recipe
