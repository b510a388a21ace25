"""What the inspect page counts, against the target of the objective and plain loops."""

import math

import numpy as np
import pytest
import torch
from pictures import refused

from counterpoint.report.similarity_page import reading, write_similarity_page
from counterpoint.similarity import EmbeddingGraph, InstanceGraph, LabelGraph
from counterpoint.similarity.look import look_at, target_of


@pytest.fixture
def graph():
    return EmbeddingGraph(torch.randn(60, 6, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("tau_s", [0.05, 0.3, 1.0])
def test_the_target_is_the_softmax_over_all_other_views(graph, tau_s):
    similarity = graph.batch(torch.arange(20)).double()
    views = similarity.repeat(2, 2) / tau_s
    soft = views.fill_diagonal_(-torch.inf).softmax(dim=1)[:20]
    entropy = -torch.where(soft > 0, soft * soft.log(), 0.0).sum(dim=1)
    share, equals, positives = target_of(similarity, tau_s)
    assert torch.allclose(share, soft[torch.arange(20), torch.arange(20) + 20], atol=1e-12)
    assert torch.equal(equals, share)
    assert torch.allclose(positives, entropy.exp(), atol=1e-9)
    part, _, _ = target_of(similarity[:7], tau_s)
    assert torch.equal(part, share[:7])


def test_instances_have_a_closed_form():
    look = look_at(InstanceGraph(100), [50], tau_s=[0.1, 0.25])
    for k, tau in enumerate((0.1, 0.25)):
        own = math.exp(1 / tau)
        assert look.softness[0].share[k] == pytest.approx(own / (own + 98), rel=1e-9)
    assert look.mean == 0
    assert look.counts.sum() == look.pairs == 100 * 99 // 2


def test_pairs_and_histogram_against_a_loop(graph):
    look = look_at(graph, [16, 500], pairs=5)
    matrix = graph.batch(torch.arange(60))
    values = sorted((float(matrix[i, j]), i, j) for i in range(60) for j in range(i))
    assert look.pairs == len(values)
    assert look.mean == pytest.approx(sum(v for v, *_ in values) / len(values), abs=1e-6)
    for pair, (value, i, j) in zip(look.least, values, strict=False):
        assert {pair.a, pair.b} == {i, j}
        assert pair.similarity == pytest.approx(value, abs=1e-6)
    for pair, (_, i, j) in zip(look.most, values[::-1], strict=False):
        assert {pair.a, pair.b} == {i, j}
    assert [soft.n for soft in look.softness] == [16, 60]
    assert look.counts.sum() == look.pairs


def test_tau_at_is_where_the_curve_crosses(graph):
    soft = look_at(graph, [60]).softness[0]
    tau = soft.tau_at(0.5)
    ids = torch.arange(60)
    share, _, _ = target_of(graph.batch(ids).double(), tau)
    assert float(share.mean()) == pytest.approx(0.5, abs=0.02)
    assert soft.tau_at(1e-9) is None


def test_equal_pairs_are_counted_and_left_out():
    look = look_at(LabelGraph(torch.arange(40) // 4), [40])
    assert look.equal == pytest.approx(3 / 39)
    assert look.most == look.least
    assert [pair.similarity for pair in look.most] == [0.0]


def test_with_class_names_the_class_is_looked_at_too(tmp_path):
    """Ten classes of four: of what is left for the class, a seventh at most is on the own other view."""
    graph = LabelGraph(torch.arange(40) // 4)
    look = look_at(graph, [40])
    soft = look.softness[0]
    own = np.exp(1 / np.array(soft.tau_s))
    np.testing.assert_allclose(soft.share, own / (7 * own + 72), rtol=1e-9)
    np.testing.assert_allclose(soft.equals, 7 * own / (7 * own + 72), rtol=1e-9)
    # Half of the target is in the class where 7 e^(1 / tau_s) is 72.
    assert soft.tau_at(0.5) is None
    assert soft.tau_at(0.5, equals=True) == pytest.approx(1 / math.log(72 / 7), rel=0.01)
    line = reading(look)[-1]
    assert "at most 14 % of the target is on the true positive, as others are equal to it" in line
    assert "stays on all of these together at tau_s = 0.43, where" in line
    page = write_similarity_page(graph, look, tmp_path / "page.html", key=str).read_text(encoding="utf-8")
    assert "batch of 40, with its equals" in page
    assert "true positive and its equals</h3>" in page
    alone = InstanceGraph(40)
    page = write_similarity_page(alone, look_at(alone, [40]), tmp_path / "alone.html", key=str)
    assert "its equals" not in page.read_text(encoding="utf-8")


def test_the_same_seed_draws_the_same(graph):
    assert look_at(graph, [16], seed=3).softness[0].share.tolist() == \
        look_at(graph, [16], seed=3).softness[0].share.tolist()  # fmt: skip
    assert look_at(graph, [16], seed=3).softness[0].share.tolist() != \
        look_at(graph, [16], seed=4).softness[0].share.tolist()  # fmt: skip


def test_what_cannot_be_looked_at(graph):
    with refused("two are needed"):
        look_at(InstanceGraph(1))
    with refused("batch size", "1"):
        look_at(graph, [16, 1])
    with refused("tau_s"):
        look_at(graph, [16], tau_s=[0.0])


def test_similarities_above_1_are_not_taken_for_1():
    graph = 2 * LabelGraph(torch.arange(40) // 4) + InstanceGraph(40)
    look = look_at(graph, [40])
    assert look.equal == 0
    assert [pair.similarity for pair in look.most] == [2.0, 0.0]


def test_keys_of_files_that_are_not_utf8_are_shown(tmp_path):
    graph = InstanceGraph(4)
    page = write_similarity_page(
        graph, look_at(graph, [4]), tmp_path / "page.html", key=lambda row: f"bild-\udcff-{row}.png"
    )
    assert "bild-\\udcff-0.png" in page.read_text(encoding="utf-8")
