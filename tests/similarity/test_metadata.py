"""Columns of a table as a graph, against plain loops."""

import math

import pytest
import torch

from counterpoint.similarity import MetadataGraph
from counterpoint.similarity.metadata import median_distance
from counterpoint.similarity.tables import read_columns

NAN = float("nan")
PRICE = torch.tensor([1.0, 3.0, NAN, 10.0, 3.5, NAN])
COLOUR = torch.tensor([0, 1, 1, -1, 1, -1])


def slow(i: int, j: int, weights: dict[str, float], bandwidth: float) -> float:
    if i == j:
        return 1.0
    x, y, a, b = float(PRICE[i]), float(PRICE[j]), int(COLOUR[i]), int(COLOUR[j])
    number = 0.0 if math.isnan(x) or math.isnan(y) else math.exp(-((x - y) ** 2) / (2 * bandwidth**2))
    category = float(a == b and a >= 0)
    return (weights["price"] * number + weights["colour"] * category) / sum(weights.values())


@pytest.mark.parametrize("weights", [{"price": 1.0, "colour": 1.0}, {"price": 3.0, "colour": 0.5}])
def test_every_pair_is_the_weighted_mean_of_its_columns(weights):
    graph = MetadataGraph({"price": PRICE}, {"colour": COLOUR}, weights=weights, bandwidths={"price": 2.0})
    want = torch.tensor([[slow(i, j, weights, 2.0) for j in range(6)] for i in range(6)])
    torch.testing.assert_close(graph.batch(torch.arange(6)), want, atol=1e-6, rtol=0)
    assert graph.name == "metadata (price ± 2, colour)"


def test_weights_whose_sum_is_not_finite_keep_their_ratio():
    graph = MetadataGraph({"price": PRICE}, {"colour": COLOUR}, weights={"price": 1e308, "colour": 1.5e308})
    assert graph.weights == pytest.approx({"price": 0.4, "colour": 0.6})


def test_the_bandwidth_is_the_median_distance():
    graph = MetadataGraph({"price": PRICE})
    pairs = sorted(abs(a - b) for k, a in enumerate([1, 3, 10, 3.5]) for b in [1, 3, 10, 3.5][:k])
    assert graph.bandwidths["price"] == pairs[2]
    assert median_distance(torch.full((5,), 2.0)) == 1.0
    # Of many samples a spread of 2,048 is enough.
    many = torch.rand(100_000, generator=torch.Generator().manual_seed(0))
    assert median_distance(many) == pytest.approx(1 - math.sqrt(0.5), abs=0.02)
    # The last of these rows is no float32.
    assert median_distance(torch.ones(2**24 + 4)) == 1.0


def test_seconds_of_a_date_are_told_apart():
    seconds = torch.tensor([1.7e9, 1.7e9 + 1, 1.7e9 + 2], dtype=torch.float64)
    graph = MetadataGraph({"date": seconds}, bandwidths={"date": 1.0})
    assert graph.batch(torch.arange(3))[0].tolist() == pytest.approx([1, math.exp(-0.5), math.exp(-2)])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "needs a column"),
        ({"numbers": {"a": PRICE}, "categories": {"a": COLOUR}}, "'a' is given as numbers and as categories"),
        ({"numbers": {"a": PRICE[:2]}, "categories": {"b": COLOUR}}, "differ in length: a 2, b 6"),
        ({"numbers": {"a": torch.full((3,), NAN)}}, "'a' has no value"),
        ({"numbers": {"a": torch.tensor([1.0, math.inf])}}, "'a' is infinite in row 1"),
        ({"categories": {"b": torch.full((3,), -1)}}, "'b' has no value"),
        ({"numbers": {"a": PRICE}, "weights": {"c": 1.0}}, "weights names 'c', which is no such column: a"),
        ({"numbers": {"a": PRICE}, "weights": {"a": 0.0}}, "weights of 'a' must be a finite number above 0"),
        ({"categories": {"b": COLOUR}, "bandwidths": {"b": 1.0}}, "bandwidths names 'b'.*: none"),
    ],
)
def test_what_a_metadata_graph_refuses(given, words):
    with pytest.raises(ValueError, match=words):
        MetadataGraph(**given)


def test_columns_are_read_in_the_order_of_the_samples(tmp_path):
    file = tmp_path / "t.csv"
    rows = ["b.png,2,red", "a.png,,blue", "c.png,1e3, red", "d.png,nan,", "e.png,N/A,N/A", "f.png,#N/A,<NA>"]
    file.write_text("\n".join(["path,price,colour", *rows]))
    numbers, categories = read_columns(
        file, "path", ["a.png", "d.png", "c.png", "b.png", "e.png", "f.png"], ["price"], ["colour"]
    )
    assert numbers["price"].nan_to_num(-1).tolist() == [-1, -1, 1000, 2, -1, -1]
    assert categories["colour"].tolist() == [0, -1, 1, 1, -1, -1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path,price\na,1\n", "lacks the column 'colour'"),
        ("path,price,colour\na,1,\na,2,\n", "row 2: path 'a' is also that of row 1"),
        ("path,price,colour\nb,1,\n", "lacks 1 of the 1 samples, the first is path 'a'"),
        ("path,price,colour\na,cheap,\n", "row 1: price must be a number, got 'cheap'"),
        ("path,price,colour\na,1,red\nb,1,000,red\n", r"row 2 \(line 3\): it has more or fewer fields"),
        ("path,price,colour\na,1\nb,1,red\n", r"row 1 \(line 2\): it has more or fewer fields"),
        ("path,price,price,colour\na,1,2,red\n", "has two columns 'price'"),
    ],
)
def test_bad_tables_are_named(tmp_path, text, words):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=words):
        read_columns(tmp_path / "t.csv", "path", ["a"], ["price"], ["colour"])
    with pytest.raises(ValueError, match="must be a file that ends in"):
        read_columns(tmp_path / "t.doc", "path", ["a"], [], [])
