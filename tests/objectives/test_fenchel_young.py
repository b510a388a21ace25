import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from counterpoint.objectives import fenchel_young
from counterpoint.objectives.fenchel_young import MAPS


def scores_with_holes(r: int = 6, c: int = 8, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    scores = torch.randn(r, c, generator=torch.Generator().manual_seed(0), dtype=dtype) * 4
    scores[torch.arange(r), torch.arange(r)] = -math.inf
    return scores.requires_grad_()


def distribution_with_holes(scores: torch.Tensor) -> torch.Tensor:
    raw = torch.rand(scores.shape, generator=torch.Generator().manual_seed(1), dtype=scores.dtype)
    raw = raw.masked_fill(scores.isinf(), 0)
    return raw / raw.sum(1, keepdim=True)


def test_index_is_the_cross_entropy():
    scores, target = scores_with_holes(), torch.tensor([1, 0, 7, 2, 6, 0])
    loss = fenchel_young(scores, target)
    expected = cross_entropy(scores, target, reduction="none")
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-14)
    weights = torch.arange(1.0, 7.0, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(loss @ weights, scores)
    (expected_gradient,) = torch.autograd.grad(expected @ weights, scores)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-12, atol=1e-14)


def test_distribution_is_the_cross_entropy():
    scores = scores_with_holes()
    target = distribution_with_holes(scores)
    loss = fenchel_young(scores, target)
    finite = scores.detach().isfinite()
    log_p = scores.log_softmax(1)
    expected = torch.stack([-(target[i][m] * log_p[i][m]).sum() for i, m in enumerate(finite)])
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-14)
    (gradient,) = torch.autograd.grad(loss.sum(), scores)
    torch.testing.assert_close(gradient, scores.softmax(1) - target, rtol=1e-12, atol=1e-14)


def test_excluded_scores_get_exactly_no_gradient():
    scores = scores_with_holes()
    for target in (torch.tensor([1, 0, 7, 2, 6, 0]), distribution_with_holes(scores.detach())):
        (gradient,) = torch.autograd.grad(fenchel_young(scores, target).sum(), scores)
        assert (gradient[scores.isinf()] == 0).all()
        assert gradient.isfinite().all()


def test_one_hot_distribution_equals_index():
    scores, target = scores_with_holes(), torch.tensor([1, 0, 7, 2, 6, 0])
    one_hot = torch.nn.functional.one_hot(target, 8).double()
    torch.testing.assert_close(fenchel_young(scores, one_hot), fenchel_young(scores, target))


def test_constant_left_out_is_the_negative_entropy_of_the_target():
    target = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    loss = fenchel_young(target.log() + 3, target)
    torch.testing.assert_close(loss, torch.special.entr(target).sum(1))


def test_large_scores_lose_no_digits():
    # In float32 a log-sum-exp of scores near 1000 is a multiple of 6e-5; the loss is far less than that.
    scores = torch.tensor([[1000.0, 986.0, -math.inf]])
    expected = math.log1p(math.exp(-14))
    for target in (torch.tensor([0]), torch.tensor([[1.0, 0.0, 0.0]])):
        assert float(fenchel_young(scores, target)) == pytest.approx(expected, abs=1e-7)


def test_a_positive_far_below_the_best_does_not_overflow():
    scores = torch.tensor([[0.0, 1000.0]], requires_grad=True)
    loss = fenchel_young(scores, torch.tensor([0]))
    loss.sum().backward()
    assert float(loss.detach()) == pytest.approx(1000.0)
    torch.testing.assert_close(scores.grad, torch.tensor([[-1.0, 1.0]]))


def test_collapsed_row_is_ln_of_its_candidates():
    scores = torch.full((1, 100), 3.0, dtype=torch.float64)
    assert float(fenchel_young(scores, torch.tensor([5]))) == pytest.approx(math.log(100), rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_scores_are_computed_in_float32(dtype: torch.dtype):
    scores = torch.tensor([[2.0, 1.0, 0.5]], dtype=dtype)
    loss = fenchel_young(scores, torch.tensor([1]))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, fenchel_young(scores.float(), torch.tensor([1])))


def test_backward_can_run_twice_on_a_kept_graph():
    scores = scores_with_holes()
    loss = fenchel_young(scores, torch.tensor([1, 0, 7, 2, 6, 0])).sum()
    (first,) = torch.autograd.grad(loss, scores, retain_graph=True)
    (second,) = torch.autograd.grad(loss, scores)
    assert torch.equal(first, second)


def test_target_gets_no_gradient():
    scores = scores_with_holes()
    target = distribution_with_holes(scores.detach()).requires_grad_()
    fenchel_young(scores, target).sum().backward()
    assert target.grad is None


@pytest.mark.parametrize(
    ("scores", "target", "words"),
    [
        (
            torch.zeros(2, 3),
            torch.zeros(3, dtype=torch.int64),
            r"target must be .*\(2, 3\).* got shape \(3,\)",
        ),
        (torch.zeros(2, 3), torch.zeros(2, dtype=torch.int32), "got .* torch.int32"),
        (torch.zeros(2, 3), torch.zeros(2, 1), r"got shape \(2, 1\)"),
        (torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int64), "int64"),
        (torch.zeros(3), torch.zeros(3), r"scores must be floating \(r, c\)"),
        (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3), "scores must be floating"),
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), r"with r, c >= 1, got shape \(0, 3\)"),
        (torch.zeros(2, 0), torch.zeros(2, 0), r"with r, c >= 1, got shape \(2, 0\)"),
        (torch.eye(3).to_sparse(), torch.arange(3), "scores must be floating .* torch.sparse_coo"),
        (torch.eye(3), torch.eye(3).to_sparse(), "target must be int64 .* torch.sparse_coo"),
        (np.zeros((2, 3)), torch.tensor([0, 1]), "scores must be floating .* got ndarray"),
        (torch.zeros(2, 3), np.array([0, 1]), "target must be int64 .* got ndarray"),
        (
            torch.zeros(2, 3),
            torch.zeros(2, device="meta", dtype=torch.int64),
            "target must be on cpu .* meta",
        ),
    ],
)
def test_bad_shapes_and_types_are_refused(scores: torch.Tensor, target: torch.Tensor, words: str):
    with pytest.raises(ValueError, match=words):
        fenchel_young(scores, target)


HOLE = torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.0, -math.inf]])
GONE = torch.tensor([[0.0, 1.0, 2.0], [-math.inf, -math.inf, -math.inf]])
FULL = torch.tensor([[0.0, 1.0, 2.0], [0.0, math.inf, 1.0]])


@pytest.mark.parametrize("map", MAPS)
@pytest.mark.parametrize(
    ("scores", "target", "words"),
    [
        (HOLE, torch.tensor([0, 3]), "target must have indices from 0 to 2, got 3"),
        (HOLE, torch.tensor([-1, 0]), "target must have indices from 0 to 2, got -1"),
        (HOLE, torch.tensor([0, 2]), "target must not be an excluded candidate, .* got 2 in row 1"),
        (HOLE, torch.zeros(2, 3), "target must sum to 1 in every row, got 0 in row 0"),
        (HOLE, torch.tensor([[1.0, 0, 0], [1, 0.5, 0]]), "target must sum to 1 .* got 1.5 in row 1"),
        (HOLE, torch.tensor([[1.0, 0, 0], [1.5, -0.5, 0]]), "target must have no entry below 0, got -0.5"),
        (HOLE, torch.tensor([[1.0, 0, 0], [math.nan, 1, 0]]), "target must have no entry below 0, got nan"),
        (HOLE, torch.tensor([[1.0, 0, 0], [0.5, 0, 0.5]]), "target must be 0 at excluded .* in row 1"),
        (GONE, torch.tensor([0, 0]), "one finite score in every row.* got -inf for the largest of row 1"),
        (FULL, torch.tensor([0, 0]), "one finite score in every row.* got inf for the largest of row 1"),
        (FULL, torch.tensor([[1.0, 0, 0], [0.5, 0.25, 0.25]]), "got inf for the largest of row 1"),
    ],
)
def test_bad_values_are_refused(map: str, scores: torch.Tensor, target: torch.Tensor, words: str):
    with pytest.raises(ValueError, match=words):
        fenchel_young(scores, target, map=map)
    with pytest.raises(ValueError, match=words):
        fenchel_young(scores, target, map=map, margin=0.5)


@pytest.mark.parametrize("margin", [-1.0, math.nan, math.inf, "1", None, torch.ones(2)], ids=str)
def test_bad_margins_are_refused(margin: object):
    with pytest.raises(ValueError, match="margin must be 0 or a number from 1e-30 to 1e30, got"):
        fenchel_young(torch.zeros(1, 2), torch.tensor([0]), margin=margin)


@pytest.mark.parametrize("map", MAPS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_a_target_of_another_type_is_taken_in_that_of_the_scores(map: str, dtype: torch.dtype):
    scores = torch.randn(3, 200, generator=torch.Generator().manual_seed(0)).requires_grad_()
    target = torch.rand(3, 200, generator=torch.Generator().manual_seed(1)).softmax(1).to(dtype)
    loss = fenchel_young(scores, target, map, margin=0.5)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, fenchel_young(scores, target.float(), map, margin=0.5))
    loss.sum().backward()
    assert scores.grad.dtype == torch.float32


def test_unknown_map_is_refused():
    with pytest.raises(
        ValueError, match="map must be one of argmax, entmax15, softmax, sparsemax, got 'softmin'"
    ):
        fenchel_young(torch.zeros(1, 2), torch.tensor([0]), map="softmin")
