"""The table of sources, and the page that describes them."""

import inspect
import re
import typing
from pathlib import Path

import pytest
import yaml
from pictures import encoded
from PIL import Image
from real_data import real_data

import counterpoint.data
from counterpoint.data import SOURCES, Labels, Samples
from counterpoint.train.recipe import Data

PAGE = Path(__file__).parents[2] / "docs" / "data" / "index.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)


def test_every_source_is_typed_and_takes_a_split():
    assert set(SOURCES) == {"shapes", "parquet", "folder", "torchvision", "table", "shards", "cameras"}
    for name, source in SOURCES.items():
        hints = typing.get_type_hints(source)
        assert hints["return"] is Samples, name
        parameters = inspect.signature(source).parameters
        assert "split" in parameters, name
        assert set(parameters) <= set(hints), name


def test_the_files_stay_importable_as_modules():
    for name in ("folder", "parquet", "table", "shapes"):
        assert inspect.ismodule(getattr(counterpoint.data, name))
    assert (counterpoint.data.Samples, counterpoint.data.Labels) == (Samples, Labels)


def test_shapes_is_a_source():
    samples = SOURCES["shapes"](split="train", count=3, size=32)
    assert len(samples) == 3
    assert samples.picture(0).mode == "RGB"


@pytest.mark.parametrize("name", SOURCES)
def test_the_page_shows_each_source_in_a_recipe(name):
    shown = [yaml.safe_load(block)["data"] for block in blocks("yaml")]
    mine = [data for data in shown if data["source"] == name]
    assert mine
    for data in mine:
        Data.model_validate(data)  # refuses unknown keys and wrong types


def test_python_on_the_page_runs(tmp_path, monkeypatch):
    """Every Python example, on small data laid out as its text says; two need real files."""
    monkeypatch.chdir(tmp_path)
    for name in ("photos/train/cat/1.jpg", "photos/train/dog/2.jpg", "inbox/1.jpg", "inbox/may/2.jpg"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(encoded(size=(8, 8), format="jpeg"))
    Path("boxes").mkdir()
    for name in ("7_front", "7_back"):
        Path(f"boxes/{name}.png").write_bytes(encoded())
    Path("captions.csv").write_text("path,caption,label,split\ninbox/1.jpg,a thing,thing,train\n")
    Path("cifar10").symlink_to(real_data("cifar10"))
    Path("shards").symlink_to(real_data("captions"))
    ran = 0
    for block in blocks("python"):
        if "torchvision" in block:
            compile(block, str(PAGE), "exec")  # downloads
            continue
        space: dict = {}
        exec(compile(block, str(PAGE), "exec"), space)
        assert len(space["samples"]) > 0
        assert isinstance(space["samples"].picture(0), Image.Image)
        ran += 1
    assert ran >= 5
