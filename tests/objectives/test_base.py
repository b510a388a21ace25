import pytest
import torch
from slow_objectives import random_views

from counterpoint.objectives import (
    CLIP,
    OBJECTIVES,
    XCLR,
    Hinge,
    InfoNCE,
    NTXent,
    Objective,
    SupCon,
    Triplet,
    WeightedSum,
)
from counterpoint.objectives.base import Known

N = 5
LABELS, TARGET = torch.tensor([0, 0, 1, 1, -1]), torch.eye(N)


class LogRefused(NTXent):
    def log(self, rows, losses):
        raise RuntimeError("the log was computed")


def test_forward_does_not_compute_the_log():
    views = random_views(2, N)
    assert torch.equal(LogRefused()(*views), NTXent()(*views))
    assert torch.equal((LogRefused() + Hinge())(*views), (NTXent() + Hinge())(*views))
    with pytest.raises(RuntimeError, match="the log was computed"):
        LogRefused().with_log(*views)


@pytest.mark.parametrize(
    ("objective", "side", "words"),
    [
        (NTXent(), {"labels": LABELS}, "NTXent does not use labels; it accepts ids"),
        (NTXent(), {"target": TARGET}, "NTXent does not use target; it accepts ids"),
        (XCLR(), {"target": TARGET, "ids": LABELS}, "XCLR does not use ids; it accepts target"),
        (XCLR(), {}, "XCLR requires target, given by name: target=...; it accepts target"),
        (SupCon(), {}, "SupCon requires labels, given by name: labels=...; it accepts labels"),
        (
            NTXent() + 0.5 * SupCon(),
            {"target": TARGET, "labels": LABELS},
            "NTXent \\+ 0.5 \\* SupCon does not use target",
        ),
        (NTXent() + SupCon(), {}, "NTXent \\+ SupCon requires labels, .*; it accepts labels, ids"),
    ],
)
def test_side_arguments_are_checked(objective: Objective, side: dict[str, torch.Tensor], words: str):
    views = random_views(2, N)
    for call in (objective, objective.with_log):
        with pytest.raises(ValueError, match=words):
            call(*views, **side)


def test_unknown_side_argument_is_refused():
    with pytest.raises(TypeError, match="label"):
        SupCon()(*random_views(2, N), label=LABELS)


def test_sum_is_the_weighted_sum_of_values_and_gradients():
    views = random_views(2, N)
    total = NTXent() + 0.75 * Hinge(margin=0.5) * 2 + Triplet()
    expected = NTXent()(*views) + 1.5 * Hinge(margin=0.5)(*views) + Triplet()(*views)
    torch.testing.assert_close(total(*views), expected)
    torch.testing.assert_close(
        torch.autograd.grad(total(*views), views), torch.autograd.grad(expected, views)
    )
    assert total.weights == (1.0, 1.5, 1.0)


def test_weight_of_a_sum_reaches_its_terms():
    views = random_views(2, N)
    total = 2 * (NTXent() + 0.5 * Hinge())
    assert total.weights == (2.0, 1.0)
    torch.testing.assert_close(total(*views), 2 * NTXent()(*views) + Hinge()(*views))


def test_each_term_gets_what_it_accepts():
    views = random_views(2, N)
    total = XCLR() + SupCon() + NTXent()
    assert (total.accepts, total.requires) == (("labels", "target", "ids", "negatives"), ("labels", "target"))
    ids = torch.tensor([0, 1, 2, 3, 3])
    loss = total(*views, labels=LABELS, target=TARGET, ids=ids)
    expected = XCLR()(*views, target=TARGET) + SupCon()(*views, labels=LABELS) + NTXent()(*views, ids=ids)
    torch.testing.assert_close(loss, expected)


class OnlyViews(Objective):
    def evaluate(self, views, known, with_log):
        assert known == Known()
        return views[0].sum(), {}


def test_no_term_is_given_what_it_does_not_accept():
    views = random_views(2, N)
    total = OnlyViews() + XCLR() + SupCon() + NTXent()
    total(*views, labels=LABELS, target=TARGET, ids=torch.arange(N))


def test_log_of_a_sum():
    views = random_views(2, N)
    loss, log = (Hinge() + 0.5 * NTXent(tau=0.2) + NTXent(tau=0.9)).with_log(*views)
    hinge, first, second = (o.with_log(*views)[1] for o in (Hinge(), NTXent(tau=0.2), NTXent(tau=0.9)))
    assert next(iter(log)) == "loss"
    torch.testing.assert_close(log["loss"], loss.detach())
    for prefix, term in (("hinge", hinge), ("ntxent", first), ("ntxent_2", second)):
        assert {key: float(value) for key, value in term.items()} == {
            key.removeprefix(f"{prefix}/"): float(value)
            for key, value in log.items()
            if key.startswith(f"{prefix}/")
        }
    assert float(log["accuracy"]) == float(hinge["accuracy"])
    chance = float(hinge["loss"]) + 0.5 * float(first["chance"]) + float(second["chance"])
    assert float(log["chance"]) == pytest.approx(chance)
    assert float(log["target_entropy"]) == pytest.approx(float(hinge["loss"]))
    assert float(log["kl"]) == pytest.approx(0.5 * float(first["kl"]) + float(second["kl"]))
    assert not any(value.requires_grad for value in log.values())


def test_parameters_of_terms_are_those_of_the_sum():
    total = 0.5 * CLIP(learnable=True) + Triplet()
    assert [tuple(p.shape) for p in total.parameters()] == [()]
    total(*random_views(2, N, dtype=torch.float32)).backward()
    (parameter,) = total.parameters()
    assert parameter.grad is not None


@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
def test_weights_must_be_finite(weight: float):
    with pytest.raises(ValueError, match="weights must be finite, got"):
        weight * NTXent()


def test_a_sum_needs_one_weight_per_term():
    with pytest.raises(ValueError, match="got 1 terms and 2 weights"):
        WeightedSum([NTXent()], [1.0, 2.0])
    with pytest.raises(ValueError, match="got 0 terms"):
        WeightedSum([], [])
    with pytest.raises(ValueError, match="weights must be finite, got a"):
        WeightedSum([NTXent()], ["a"])
    with pytest.raises(ValueError, match="terms of a sum must be objectives, got NTXent, Identity"):
        WeightedSum([NTXent(), torch.nn.Identity()], [1.0, 2.0])


@pytest.mark.parametrize("other", ["1", None, True, torch.nn.Identity()], ids=str)
def test_only_objectives_add_and_only_numbers_multiply(other: object):
    with pytest.raises(TypeError):
        NTXent() + other
    with pytest.raises(TypeError):
        other * NTXent()


def test_with_log_refuses_non_finite_views_by_name():
    z0, z1 = random_views(2, N)
    broken = z1.detach().clone()
    broken[3, 2], broken[0, 0] = float("nan"), float("inf")
    with pytest.raises(ValueError, match="NTXent: view 1 must be finite, got 2 of 25 NaN or infinite"):
        NTXent().with_log(z0, broken)


def test_a_nan_in_a_view_is_a_nan_loss():
    z0, z1 = random_views(2, N)
    broken = z1.detach().clone()
    broken[3, 2] = float("nan")
    assert NTXent()(z0, broken).isnan()


def test_repr_shows_the_settings():
    shown = repr(NTXent(tau=0.2) + 0.5 * XCLR(tau_s=0.3))
    assert "NTXent(tau=0.2, reduction='mean_log')" in shown
    assert "XCLR(tau=0.1, tau_s=0.3)" in shown
    assert "weights=(1.0, 0.5)" in shown


def test_an_objective_has_to_define_evaluate():
    with pytest.raises(TypeError, match=r"abstract method .*evaluate"):
        Objective()(torch.eye(2))


def test_objectives_hold_no_state():
    objective = InfoNCE()
    before = dict(vars(objective))
    objective.with_log(*random_views(2, N))
    assert vars(objective) == before
    assert objective.state_dict() == {}


@pytest.mark.parametrize("make", OBJECTIVES.values(), ids=OBJECTIVES)
@pytest.mark.parametrize("factor", [1e20, 1e30])
def test_rows_too_long_to_be_squared_are_directions_all_the_same(make: type, factor: float):
    z0, z1 = random_views(2, N)
    z0, z1 = z0.detach().float(), z1.detach().float()
    objective = make()
    known = {"labels": LABELS, "target": TARGET.float()}
    known = {name: known[name] for name in objective.requires}
    long = (z0 * factor).requires_grad_()
    loss = objective(long, z1, **known)
    torch.testing.assert_close(loss, objective(z0, z1, **known))
    loss.backward()
    assert bool(long.grad.isfinite().all())
