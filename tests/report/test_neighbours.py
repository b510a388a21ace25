import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from counterpoint.data.samples import Labels
from counterpoint.evaluate.features import Features
from counterpoint.report.neighbours import (
    Neighbour,
    Query,
    describe,
    near,
    pick_queries,
    shared_columns,
    sharing,
    thumbnails,
)


def on_circle(degrees: list[float], **labels: list[int]) -> Features:
    angles = torch.deg2rad(torch.tensor(degrees))
    h = torch.stack([angles.cos(), angles.sin()], dim=1)
    columns = {
        name: Labels(torch.tensor(v), [f"{name}{i}" for i in range(max(v) + 1)]) for name, v in labels.items()
    }
    return Features(h, [f"k{i}" for i in range(len(degrees))], columns)


def test_nearest_on_the_circle() -> None:
    features = on_circle([0, 10, 25, 90, 351])
    assert near(features, [0, 3], k=2).tolist() == [[4, 1], [2, 1]]
    assert near(features, [0], k=9).tolist() == [[4, 1, 2, 3]]


def test_sharing_counts_equal_labels() -> None:
    features = on_circle([0, 10, 20, 180, 190, 200], object=[0, 0, 0, 1, 1, 1], colour=[0, 1, 0, 1, 0, 1])
    found = sharing(features, ["object", "colour"], k=2)
    assert found["object"] == pytest.approx(2)
    # 0 and 2 share with each other, 1 with none, the same on the other side.
    assert found["colour"] == pytest.approx(4 / 6)


def test_sharing_passes_over_rows_without_a_label() -> None:
    features = on_circle([0, 10, 21, 30], object=[0, 0, -1, 0])
    assert sharing(features, ["object"], k=1)["object"] == pytest.approx(2 / 3)


def test_columns_that_number_the_samples_are_left_out() -> None:
    features = on_circle([0, 1, 2, 3], size=[0, 0, 1, 1], identity=[0, 1, 2, 3], object=[1, 0, 0, 1])
    assert shared_columns(features, None) == ["size", "object"]
    assert shared_columns(features, "object") == ["object", "size"]


def test_queries_cover_the_classes() -> None:
    labels = [0] * 50 + [1] * 3 + [2] * 2 + [-1] * 5
    features = on_circle([float(i) for i in range(60)], object=labels)
    picked = pick_queries(features, "object", 6)
    assert sorted(labels[i] for i in picked) == [0, 0, 1, 1, 2, 2]
    assert picked == pick_queries(features, "object", 6)
    assert len(set(pick_queries(features, None, 7))) == 7


def test_description_of_a_query() -> None:
    features = on_circle([0, 10, 200], object=[0, 0, 1], colour=[1, 0, -1])
    (query,) = describe(features, [0], {2: near(features, [0], 2)}, ["object", "colour"], ["a", "b", "c"])
    assert query == Query(
        "k0",
        ("object0", "colour1"),
        "a",
        {2: (Neighbour("k1", "object0", (True, False)), Neighbour("k2", "object1", (False, None)))},
    )


def gallery(keys: int) -> list[Query]:
    return [Query("q", (), "", {0: tuple(Neighbour(f"n{i}", "", ()) for i in range(keys))})]


def opened(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))


def test_pictures_shrink_to_the_budget() -> None:
    def noise(key: str) -> Image.Image:
        return Image.fromarray(
            np.random.default_rng(len(key)).integers(0, 256, (300, 200, 3), dtype=np.uint8)
        )

    large = thumbnails(gallery(20), noise, budget=10**7)
    assert opened(large["q"]).size == (80, 120)
    small = thumbnails(gallery(20), noise, budget=60_000)
    assert sum(len(uri) for uri in small.values()) <= 60_000
    assert max(opened(small["q"]).size) < 120


def test_small_pictures_are_not_enlarged_and_drawings_stay_exact() -> None:
    flat = Image.new("RGB", (32, 32), (200, 30, 30))
    made = thumbnails(gallery(1), lambda key: flat, budget=10**6)
    assert made["q"].startswith("data:image/png;base64,")
    assert opened(made["q"]).tobytes() == flat.tobytes()
