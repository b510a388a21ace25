"""Background reliance on the generated shapes: none for a reader of objects, all for one of backgrounds."""

from pathlib import Path

import pytest
import torch
from feature_sets import split

from counterpoint.data.shapes import shapes
from counterpoint.evaluate import (
    Features,
    background_reliance,
    knn,
    linear_probe,
    load_results,
    save_results,
)


def seen(part: str, object_weight: float, background_weight: float, **options: object) -> Features:
    """Features of an encoder that sees objects and backgrounds with these weights, and some noise."""
    samples = shapes(part, count=400, size=16, **options)  # type: ignore[arg-type]
    g = torch.Generator().manual_seed(len(part) + int(bool(options.get("recombine"))))
    h = 0.1 * torch.randn(400, 24, generator=g)
    h[:, :12] += object_weight * torch.nn.functional.one_hot(samples.labels["object"].values, 12)
    h[:, 12:] += background_weight * torch.nn.functional.one_hot(samples.labels["background"].values, 12)
    return Features(h, samples.keys, samples.labels, f"shapes/{part}")


def splits(object_weight: float, background_weight: float) -> tuple[Features, Features, Features]:
    tied = {"background_correlation": 1.0}
    return (
        seen("train", object_weight, background_weight, **tied),
        seen("test", object_weight, background_weight, **tied),
        seen("test", object_weight, background_weight, recombine=True),
    )


@pytest.mark.parametrize("probe", ["knn", "linear"])
def test_a_reader_of_objects_loses_nothing(probe: str):
    original, recombined, gap = background_reliance(*splits(1.0, 0.0), probe=probe)  # type: ignore[arg-type]
    assert (original.value, recombined.value, gap.value) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("probe", ["knn", "linear"])
def test_a_reader_of_backgrounds_loses_all(probe: str):
    original, recombined, gap = background_reliance(*splits(0.0, 1.0), probe=probe)  # type: ignore[arg-type]
    # Every recombined background is tied to another object, so that its reader is always wrong.
    assert (original.value, recombined.value, gap.value) == (1.0, 0.0, 1.0)


def test_accuracies_are_those_of_the_probes_themselves(tmp_path: Path):
    train, original, recombined = splits(0.25, 0.3)
    results = background_reliance(train, original, recombined, k=7, temperature=0.2)
    assert results[0].value == knn(train, original, k=7, temperature=0.2)[0].value
    assert results[1].value == knn(train, recombined, k=7, temperature=0.2)[0].value
    linear = background_reliance(train, original, recombined, probe="linear", l2=0.01)
    assert linear[1].value == linear_probe(train, recombined, l2=0.01).value
    for three in (results, linear):
        assert three[2].value == three[0].value - three[1].value
        assert 0 < three[2].value < 1
        assert [r.metric for r in three] == ["accuracy", "accuracy", "gap"]
        assert [r.settings["split"] for r in three] == ["original", "recombined", "original - recombined"]
        assert {(r.protocol, r.version, r.n, r.settings["column"]) for r in three} == {
            ("background", 1, 400, "object")
        }
    save_results(tmp_path / "r.json", results + linear)
    assert load_results(tmp_path / "r.json") == results + linear


def test_refuses_by_name():
    train = split(torch.eye(4), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="probe must be knn or linear, got 'mlp'"):
        background_reliance(train, train, train, probe="mlp", k=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has 4 labelled samples, the recombined one 3"):
        background_reliance(train, train, split(torch.eye(4), [0, -1, 0, 1]), k=1)
    with pytest.raises(ValueError, match="k is 20, but there are only 4"):
        background_reliance(train, train, train)
