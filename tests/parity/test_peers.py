"""The same numbers as the released libraries, where they have the same loss."""

import pytest
import torch
from slow_objectives import random_views

from counterpoint.objectives import ntxent, supcon, triplet

lightly_loss = pytest.importorskip("lightly.loss", reason="lightly comes with counterpoint[baselines]")
pml = pytest.importorskip("pytorch_metric_learning", reason="it comes with counterpoint[baselines]")
from pytorch_metric_learning import distances, losses, miners, reducers  # noqa: E402


def assert_same(ours: torch.Tensor, theirs: torch.Tensor, views: list[torch.Tensor]) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        torch.autograd.grad(ours, views), torch.autograd.grad(theirs, views), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("n", [2, 5, 64])
@pytest.mark.parametrize("tau", [0.07, 0.5, 2.0])
def test_ntxent_is_lightlys(n: int, tau: float):
    views = random_views(2, n, d=16, seed=n)
    assert_same(ntxent(*views, tau=tau), lightly_loss.NTXentLoss(temperature=tau)(*views), views)


@pytest.mark.parametrize("n", [2, 5, 32])
@pytest.mark.parametrize("tau", [0.07, 0.5])
def test_ntxent_is_pytorch_metric_learnings(n: int, tau: float):
    views = random_views(2, n, d=16, seed=n)
    theirs = losses.NTXentLoss(temperature=tau)(torch.cat(views), torch.arange(n).repeat(2))
    assert_same(ntxent(*views, tau=tau), theirs, views)


@pytest.mark.parametrize("v", [1, 2, 3])
@pytest.mark.parametrize("tau", [0.07, 0.5])
def test_supcon_is_pytorch_metric_learnings(v: int, tau: float):
    views = random_views(v, 12, d=16, seed=v)
    labels = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3])
    theirs = losses.SupConLoss(temperature=tau)(torch.cat(views), labels.repeat(v))
    assert_same(supcon(*views, labels=labels, tau=tau), theirs, views)


@pytest.mark.parametrize("n", [2, 5, 32])
@pytest.mark.parametrize("margin", [0.2, 1.0])
def test_triplet_is_pytorch_metric_learnings_batch_hard(n: int, margin: float):
    views = random_views(2, n, d=16, seed=n)
    cosine, labels, directions = distances.CosineSimilarity(), torch.arange(n), []
    for a, b in (views, views[::-1]):
        # A second tensor of labels: given the same one twice, the miner leaves out the pairs (i, i).
        others = labels.clone()
        hardest = miners.BatchHardMiner(distance=cosine)(a, labels, b, others)
        loss = losses.TripletMarginLoss(margin=margin, distance=cosine, reducer=reducers.MeanReducer())
        directions.append(loss(a, labels, hardest, b, others))
    assert_same(triplet(*views, margin=margin), sum(directions) / 2, views)
