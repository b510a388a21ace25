"""Numbers of a graph against loops over pairs."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.similarity import (
    InstanceGraph,
    LabelGraph,
    MatrixGraph,
    RandomGraph,
    class_similarity,
    describe,
    summary,
)


def slow_class_similarity(graph, labels, ids, classes):
    total = [[[] for _ in range(classes)] for _ in range(classes)]
    for a in set(ids):
        for b in set(ids):
            if a != b and labels[a] >= 0 and labels[b] >= 0:
                value = graph.batch(torch.tensor([a, b]))[0, 1].item()
                total[labels[a]][labels[b]].append(value)
    return [[statistics.fmean(v) if v else math.nan for v in row] for row in total]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 14), st.integers(0, 2**31), st.integers(1, 5), st.data())
def test_class_similarity_is_its_twin(n, seed, tile, data):
    labels = torch.randint(-1, 3, (n,), generator=torch.Generator().manual_seed(seed))
    graph = RandomGraph("sample", n=n, seed=seed)
    ids = data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    with pytest.MonkeyPatch.context() as patch:
        # Small tiles, so that the last ones are short.
        patch.setattr(summary, "TILE", tile)
        got = class_similarity(graph, labels, torch.tensor(ids, dtype=torch.int64), classes=4)
    want = torch.tensor(slow_class_similarity(graph, labels.tolist(), ids, 4))
    torch.testing.assert_close(got, want, equal_nan=True, rtol=0, atol=1e-6)
    assert torch.equal(got.nan_to_num(-1), got.T.nan_to_num(-1))


def test_a_drawn_sample_is_even_over_the_classes(monkeypatch):
    labels = torch.tensor([0] * 1000 + [1] * 30 + [-1] * 50 + [2] * 2 + [4])
    seen = []

    class Watched(LabelGraph):
        def between(self, rows, columns):
            seen.append(labels[rows])
            return super().between(rows, columns)

    out = class_similarity(Watched(labels), labels, 60)
    # 60 = 2 of class 2, 1 of class 4, and the rest in turns: 29 of class 0 and 28 of class 1, or the reverse.
    counts = torch.bincount(seen[0], minlength=5).tolist()
    assert sum(counts) == 60
    assert counts[2:] == [2, 0, 1]
    assert abs(counts[0] - counts[1]) <= 1
    assert out.shape == (5, 5)
    assert out.diagonal()[:3].tolist() == [1, 1, 1]
    assert out[4, 4].isnan(), "one sample has no pair"
    assert out[3].isnan().all()
    assert out[0, 1] == 0


def test_the_seed_decides_the_draw():
    graph, labels = RandomGraph("sample", n=500), torch.arange(500) % 5
    maps = [class_similarity(graph, labels, 50, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(maps[0], maps[1])
    assert not torch.equal(maps[0], maps[2])
    whole = class_similarity(graph, labels, 10_000)
    assert torch.equal(whole, class_similarity(graph, labels, torch.arange(500)))


def test_no_label_at_all_gives_no_number():
    assert class_similarity(InstanceGraph(3), torch.full((3,), -1)).isnan().all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"labels": torch.tensor([0, 1])}, "2 labels for a graph of 3 samples"),
        (
            {"labels": torch.tensor([0, 1, 5]), "classes": 5},
            "classes is 5, but .* at least 6",
        ),
        ({"labels": torch.tensor([0, 1, 2]), "sample": 0}, "sample must be an integer of at least 1, got 0"),
        ({"labels": torch.tensor([0, 1, 2]), "sample": torch.tensor([3])}, r"sample\[0\] is 3"),
        ({"labels": torch.tensor([0.0, 1.0, 2.0])}, "float32"),
    ],
)
def test_class_similarity_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        class_similarity(InstanceGraph(3), **arguments)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 15), st.integers(0, 2**31), st.data())
def test_describe_is_its_twin(n, seed, data):
    m = torch.randn(n, n, generator=torch.Generator().manual_seed(seed))
    m = (m + m.T) / 2
    ids = data.draw(
        st.lists(st.integers(0, n - 1), min_size=2, max_size=20).filter(lambda x: len(set(x)) > 1)
    )
    out = describe(MatrixGraph(m), torch.tensor(ids))
    chosen = sorted(set(ids))
    values = sorted(m[a, b].item() for a in chosen for b in chosen if a < b)

    def quantile(q: float) -> float:
        place = q * (len(values) - 1)
        low = math.floor(place)
        return values[low] + (place - low) * (values[min(low + 1, len(values) - 1)] - values[low])

    assert out["pairs"] == len(values)
    assert out["mean"] == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert out["median"] == pytest.approx(statistics.median(values), abs=1e-6)
    for name, q in [("min", 0), ("q05", 0.05), ("q25", 0.25), ("q75", 0.75), ("q95", 0.95), ("max", 1)]:
        assert out[name] == pytest.approx(quantile(q), abs=1e-5)
    assert all(type(value) is float for value in out.values())


@pytest.mark.parametrize("ids", [[], [3], [3, 3]])
def test_describe_needs_two_samples(ids):
    with pytest.raises(ValueError, match=rf"ids holds {len(set(ids))} different samples: 2 to 8192"):
        describe(InstanceGraph(5), torch.tensor(ids, dtype=torch.int64))


def test_describe_refuses_what_would_not_fit():
    with pytest.raises(ValueError, match="ids holds 8193 different samples"):
        describe(InstanceGraph(10_000), torch.arange(8193))
    with pytest.raises(ValueError, match=r"ids\[0\] is 5"):
        describe(InstanceGraph(5), torch.tensor([5]))
