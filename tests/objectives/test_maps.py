"""The Fenchel-Young loss with maps other than softmax."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_objectives import SLOW_MAPS
from torch import Tensor

from counterpoint.objectives import OBJECTIVES, XCLR, NTXent, SupCon, fenchel_young, simplex, supcon, xclr
from counterpoint.objectives.base import Known
from counterpoint.objectives.fenchel_young import MAPS, lower_positives, probability

FITTED = ["entmax15", "sparsemax", "argmax"]
EACH = pytest.mark.parametrize("map", FITTED)
EVERY = pytest.mark.parametrize("map", sorted(MAPS))
MARGINS = pytest.mark.parametrize("margin", [0.0, 0.7])
QUICK = settings(deadline=None, max_examples=50)


def scores_with_holes(r: int = 6, c: int = 8, scale: float = 1.0, seed: int = 0) -> Tensor:
    scores = torch.randn(r, c, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
    scores[torch.arange(r), torch.arange(r)] = -math.inf
    return scores.requires_grad_()


def targets(scores: Tensor) -> dict[str, Tensor]:
    r, c = scores.shape
    soft = torch.rand(r, c, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    soft = soft.masked_fill(scores.detach().isinf(), 0)
    return {"index": (torch.arange(r) + 1) % c, "soft": soft / soft.sum(1, keepdim=True)}


def dense(target: Tensor, c: int) -> Tensor:
    return torch.nn.functional.one_hot(target, c).double() if target.ndim == 1 else target


@EACH
@MARGINS
@pytest.mark.parametrize("kind", ["index", "soft"])
def test_value_and_gradient_are_those_of_the_definition(map: str, margin: float, kind: str):
    scores = scores_with_holes()
    target = targets(scores)[kind]
    y = dense(target, 8)
    loss = fenchel_young(scores, target, map, margin)
    (gradient,) = torch.autograd.grad(loss @ torch.arange(1.0, 7.0, dtype=torch.float64), scores)
    p_of, omega = SLOW_MAPS[map]
    for i in range(6):
        some = [j for j in range(8) if j != i]
        theta = scores[i, some].detach() - margin * y[i, some] / y[i].amax()
        p = torch.tensor(p_of(theta.tolist()), dtype=torch.float64)
        expected = p @ theta - omega(p.tolist()) - y[i, some] @ theta
        torch.testing.assert_close(loss[i], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient[i, some], (i + 1) * (p - y[i, some]), rtol=1e-11, atol=1e-11)
        assert gradient[i, i] == 0


@EVERY
@QUICK
@given(seed=st.integers(0, 10_000), c=st.integers(2, 12))
def test_no_distribution_does_better_than_p(map: str, seed: int, c: int):
    scores = torch.randn(1, c, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    loss = fenchel_young(scores, torch.tensor([0]), map) + scores[:, 0]
    entropy = MAPS[map].entropy
    p = probability(scores, map)
    torch.testing.assert_close((p * scores).sum(1) + entropy(p), loss, rtol=1e-12, atol=1e-12)
    q = torch.distributions.Dirichlet(torch.full((c,), 0.4, dtype=torch.float64)).sample((100,))
    assert ((q * scores).sum(1) + entropy(q) <= loss + 1e-12).all()


def test_sparsemax_is_the_printed_loss():
    scores = torch.randn(50, 30, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    y = torch.arange(50) % 30
    ordered = scores.sort(1, descending=True).values
    k = (1 + torch.arange(1, 31) * ordered > ordered.cumsum(1)).sum(1)
    threshold = (ordered.cumsum(1).gather(1, k[:, None] - 1).squeeze(1) - 1) / k
    inside = scores > threshold[:, None]
    printed = (inside * (scores**2 - threshold[:, None] ** 2)).sum(1) / 2 + 0.5 - scores[torch.arange(50), y]
    torch.testing.assert_close(fenchel_young(scores, y, "sparsemax"), printed, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("map", "lead"), [("entmax15", 2.0), ("sparsemax", 1.0), ("argmax", 0.0)])
@MARGINS
def test_zero_exactly_where_the_positive_leads_enough(map: str, lead: float, margin: float):
    for short in (0.0, 0.25):
        scores = torch.tensor([[0.0, 5 + lead + margin - short, 5.0, 2.0]], requires_grad=True)
        loss = fenchel_young(scores, torch.tensor([1]), map, margin)
        loss.sum().backward()
        if short:
            assert loss.item() > 1e-3
            assert scores.grad[0, 1] < 0
        elif map == "argmax":
            assert loss.item() == 0
        else:
            assert loss.item() == 0
            assert (scores.grad == 0).all()


@EACH
@MARGINS
@pytest.mark.parametrize("kind", ["index", "soft"])
def test_gradient_is_exactly_zero_outside_both_supports(map: str, margin: float, kind: str):
    scores = scores_with_holes(20, 40, scale=3.0)
    target = targets(scores)[kind]
    y = dense(target, 40)
    y = y.masked_fill(y < y.mean(1, keepdim=True), 0)
    y = y / y.sum(1, keepdim=True)
    given = target if kind == "index" else y
    (gradient,) = torch.autograd.grad(fenchel_young(scores, given, map, margin).sum(), scores)
    outside = (probability(lower_positives(scores.detach(), given, margin), map) == 0) & (y == 0)
    assert outside.sum() > 200
    assert (gradient[outside] == 0).all()
    assert (gradient[~outside] != 0).sum() > 5


@EACH
def test_the_published_order_of_values(map: str):
    # For one positive a smaller entropy gives a smaller loss.
    scores = scores_with_holes()
    order = ["softmax", "entmax15", "sparsemax", "argmax"]
    target = targets(scores)["index"]
    above = fenchel_young(scores, target, order[order.index(map) - 1])
    loss = fenchel_young(scores, target, map)
    assert (loss >= 0).all()
    assert (loss <= above).all()


@EACH
@MARGINS
@pytest.mark.parametrize("kind", ["index", "soft"])
def test_gradcheck(map: str, margin: float, kind: str):
    scores = scores_with_holes(4, 6).detach()[:, 4:].requires_grad_()
    target = targets(scores)[kind]
    assert torch.autograd.gradcheck(lambda x: fenchel_young(x, target, map, margin), (scores,))


@EVERY
def test_softmax_takes_the_margin_too(map: str):
    scores = scores_with_holes().detach()
    for target in targets(scores).values():
        y = dense(target, 8)
        cost = 1 - y / y.amax(1, keepdim=True)
        with_cost = fenchel_young(scores + 0.4 * cost, target, map)
        torch.testing.assert_close(fenchel_young(scores, target, map, 0.4), with_cost, rtol=1e-12, atol=1e-12)


def test_argmax_with_a_margin_is_the_multiclass_hinge():
    scores = scores_with_holes(scale=0.5).detach()
    target = targets(scores)["index"]
    score = scores.gather(1, target[:, None])
    others = scores.scatter(1, target[:, None], -math.inf).amax(1, keepdim=True)
    expected = (0.6 + others - score).relu().squeeze(1)
    torch.testing.assert_close(fenchel_young(scores, target, "argmax", 0.6), expected)


def test_argmax_ties_share():
    scores = torch.tensor([[2.0, 2.0, 0.0]], requires_grad=True)
    fenchel_young(scores, torch.tensor([2]), "argmax").sum().backward()
    assert scores.grad.tolist() == [[0.5, 0.5, -1.0]]


@EACH
def test_large_scores_lose_no_digits(map: str):
    scores = torch.tensor([[1000.0, 999.75, 999.5, -math.inf]])
    for target in (torch.tensor([1]), torch.tensor([[0.0, 1.0, 0.0, 0.0]])):
        near = fenchel_young(scores - 1000, target, map)
        torch.testing.assert_close(fenchel_young(scores, target, map), near, rtol=1e-6, atol=0)


@EACH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_scores_are_computed_in_float32(map: str, dtype: torch.dtype):
    scores = torch.tensor([[2.0, 1.75, 0.5]], dtype=dtype)
    loss = fenchel_young(scores, torch.tensor([1]), map)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, fenchel_young(scores.float(), torch.tensor([1]), map))


@EACH
@MARGINS
def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch, map: str, margin: float):
    for kind in ("index", "soft"):
        scores = scores_with_holes(7, 9)
        target = targets(scores)[kind]
        whole = fenchel_young(scores, target, map, margin)
        (expected,) = torch.autograd.grad(whole.sum(), scores)
        monkeypatch.setitem(simplex.BLOCK, "cpu", 2 * 9)  # two rows at a time, the last block short
        loss = fenchel_young(scores, target, map, margin)
        torch.testing.assert_close(loss, whole, rtol=1e-13, atol=1e-14)
        torch.testing.assert_close(
            torch.autograd.grad(loss.sum(), scores)[0], expected, rtol=1e-12, atol=1e-13
        )
        monkeypatch.undo()


@EACH
def test_only_the_scores_and_three_numbers_a_row_are_kept(map: str):
    scores = scores_with_holes(6, 50)
    kept: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        fenchel_young(scores, torch.zeros(6, dtype=torch.int64) + 9, map, 0.5)
    extra = [x for x in kept if x.data_ptr() != scores.data_ptr()]
    assert len(kept) - len(extra) == 1
    assert sorted(tuple(x.shape) for x in extra) == [(6,), (6, 3)]


@EACH
def test_nan_scores_give_nan(map: str):
    scores = torch.tensor([[0.0, math.nan, 1.0], [0.0, 0.5, 1.0]])
    loss = fenchel_young(scores, torch.tensor([0, 0]), map)
    assert loss.isnan().tolist() == [True, False]


@EACH
def test_second_derivatives_are_refused(map: str):
    scores = scores_with_holes()
    loss = fenchel_young(scores, targets(scores)["soft"], map).square().sum()
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(loss, scores, create_graph=True)


@pytest.mark.parametrize("make", OBJECTIVES.values(), ids=OBJECTIVES)
def test_no_objective_gives_a_wrong_second_derivative(make: type):
    """Right, where autograd made the backward pass, or refused where it was written by hand."""
    generator = torch.Generator().manual_seed(0)
    z0, z1, v = (torch.randn(5, 3, dtype=torch.float64, generator=generator) for _ in range(3))
    objective = make()
    sides = {"labels": torch.tensor([0, 0, 1, 1, 2]), "target": torch.eye(5, dtype=torch.float64)}
    known = {name: sides[name] for name in objective.requires}

    def slope(z: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(objective(z, z1, **known), z)
        return (gradient * v).sum()

    z = z0.clone().requires_grad_()
    try:
        (gradient,) = torch.autograd.grad(objective(z, z1, **known), z, create_graph=True)
        (second,) = torch.autograd.grad((gradient * v).sum(), z)
    except RuntimeError as error:
        if "first derivatives only" not in str(error):
            raise
        return
    h = 1e-5
    moved = [slope((z0 + sign * h * v).requires_grad_()) for sign in (1, -1)]
    assert float((second * v).sum()) == pytest.approx(float(moved[0] - moved[1]) / (2 * h), rel=1e-4)


@pytest.mark.parametrize("make", [NTXent, SupCon, XCLR])
def test_an_unknown_map_is_refused_when_built(make: type):
    with pytest.raises(
        ValueError, match="map must be one of argmax, entmax15, softmax, sparsemax, got 'max'"
    ):
        make(map="max")


def test_the_target_of_xclr_does_not_depend_on_the_map():
    views = [torch.eye(3), torch.eye(3)]
    graph = torch.tensor([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    rows = [XCLR(map=map).rows(views, Known(target=graph)).target for map in sorted(MAPS)]
    assert all(torch.equal(rows[0], other) for other in rows)


@pytest.mark.parametrize("map", ["entmax15", "sparsemax"])
def test_xclr_at_tau_s_to_0_is_supcon_with_every_map(map: str):
    views = [torch.randn(6, 4, generator=torch.Generator().manual_seed(k)) for k in range(2)]
    labels = torch.tensor([0, 0, 1, 1, 2, 0])
    graph = (labels[:, None] == labels).float()
    expected = supcon(*views, labels=labels, tau=0.3, map=map)
    torch.testing.assert_close(xclr(*views, target=graph, tau=0.3, tau_s=1e-5, map=map), expected)


def test_kl_is_zero_where_the_map_gives_the_target():
    # Cosines over tau that equal the target up to a constant: sparsemax gives it back.
    rows = XCLR(map="sparsemax", tau_s=0.5)
    views = [torch.eye(4, dtype=torch.float64)]
    graph = torch.full((4, 4), 0.2, dtype=torch.float64)
    _, log = rows.with_log(*views, target=graph)
    assert float(log["kl"]) == pytest.approx(0, abs=1e-12)
    assert float(log["target_entropy"]) == pytest.approx((1 - 1 / 3) / 2)
    assert float(log["support"]) == 3


def test_log_mean_needs_the_softmax():
    with pytest.raises(ValueError, match=r"reduction='log_mean' needs map='softmax'.* got 'sparsemax'"):
        NTXent(reduction="log_mean", map="sparsemax")


def test_repr_shows_a_map_that_is_not_the_softmax():
    assert repr(XCLR(map="sparsemax")) == "XCLR(tau=0.1, tau_s=0.1, map='sparsemax')"
