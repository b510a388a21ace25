"""The probe against scikit-learn, by autograd, and by what may and may not move its number."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from feature_sets import clusters, network_like, split
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from counterpoint.evaluate import Features, linear, linear_probe, linear_probes
from counterpoint.evaluate.linear import _held_out, _loss, fit_probe, minimise


def problem(n: int, d: int, k: int, seed: int, offset: int = 0) -> tuple[Tensor, Tensor]:
    h, y = clusters(n, d, k, noise=1.5, seed=seed, offset=offset)
    return network_like(h), y


def standard(h: Tensor) -> Tensor:
    h = h.double()
    return (h - h.mean(dim=0)) / h.std(dim=0, correction=0)


def objective(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, l2: float) -> float:
    """The formula of the module, row by row."""
    total = 0.0
    for row, label in zip(x, y.tolist(), strict=True):
        scores = (row @ weight + bias).tolist()
        top = max(scores)
        total += top + math.log(sum(math.exp(s - top) for s in scores)) - scores[label]
    return total / len(x) + 0.5 * l2 * float(weight.square().sum())


def sklearn_optimum(x: Tensor, y: Tensor, l2: float) -> tuple[Tensor, Tensor]:
    peer = LogisticRegression(C=1 / (l2 * len(x)), solver="newton-cg", tol=1e-12, max_iter=10_000)
    peer.fit(x.numpy(), y.numpy())
    weight, bias = torch.from_numpy(peer.coef_).T, torch.from_numpy(peer.intercept_)
    if weight.shape[1] == 1:  # two classes: one column, the difference of ours
        weight, bias = torch.cat([-weight / 2, weight / 2], 1), torch.cat([-bias / 2, bias / 2])
    return weight, bias


@pytest.mark.parametrize("l2", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize(("n", "d", "k"), [(300, 12, 5), (40, 60, 4), (150, 8, 3)])
def test_the_optimum_is_scikit_learns(n: int, d: int, k: int, l2: float):
    h, y = problem(n, d, k, seed=1)
    x = standard(h)
    weight, bias = sklearn_optimum(x, y, l2)
    fit = minimise(x, y, k, x.square().mean(dim=0), l2, tolerance=1e-7, evaluations=5000)
    assert fit.converged
    assert fit.loss == pytest.approx(objective(x, y, fit.weight, fit.bias, l2), rel=1e-12)
    assert fit.loss == pytest.approx(objective(x, y, weight, bias, l2), rel=1e-7)
    size = float(weight.abs().max())
    torch.testing.assert_close(fit.weight, weight, rtol=1e-3, atol=1e-3 * size)
    # softmax does not see a number added to every bias
    torch.testing.assert_close(fit.bias - fit.bias.mean(), bias - bias.mean(), rtol=1e-2, atol=1e-3)


def test_two_classes_are_scikit_learns_too():
    # Two columns -a/2 and a/2 carry the penalty 2 |a/2|^2 = |a|^2 / 2: half of what one column a carries.
    h, y = problem(200, 6, 2, seed=2)
    x = standard(h)
    weight, bias = sklearn_optimum(x, y, 0.02)
    fit = minimise(x, y, 2, x.square().mean(dim=0), 0.04, tolerance=1e-10)
    torch.testing.assert_close(fit.weight, weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fit.bias - fit.bias.mean(), bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("l2", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_accuracy_is_that_of_a_scikit_learn_pipeline(l2: float, dtype: str, monkeypatch: pytest.MonkeyPatch):
    if dtype == "float32":
        monkeypatch.setattr(linear, "SMALL", 0)
    train, test = split(*problem(500, 20, 7, seed=3)), split(*problem(400, 20, 7, seed=3, offset=1))
    peer = make_pipeline(StandardScaler(), LogisticRegression(C=1 / (l2 * 500), tol=1e-10, max_iter=10_000))
    peer.fit(train.h.double().numpy(), train.labels["kind"].values.numpy())
    wanted = peer.score(test.h.double().numpy(), test.labels["kind"].values.numpy())
    result = linear_probe(train, test, l2=l2)
    assert result.settings["converged"] is True
    # The probe stops within a thousandth of the least loss; a row on the border may fall either way.
    assert result.value == pytest.approx(wanted, abs=3 / 400)
    assert 0.4 < result.value < 0.99


@pytest.mark.parametrize("chunk", [1, 7, 50, 8192])
def test_gradients_are_those_of_autograd(chunk: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(linear, "CHUNK", chunk)
    x, y = clusters(50, 4, 3, noise=1.0, seed=4)
    x = x.double()
    weight = torch.randn(
        4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    bias = torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    wanted = torch.nn.functional.cross_entropy(x @ weight + bias, y)
    wanted.backward()
    loss, grad_w, grad_b = _loss(x, y, weight.detach(), bias.detach())
    assert loss == pytest.approx(wanted.item(), rel=1e-12)
    torch.testing.assert_close(grad_w, weight.grad)
    torch.testing.assert_close(grad_b, bias.grad)


@pytest.mark.parametrize("l2", [1.0, 1e-2, 1e-4])
def test_the_gap_is_not_below_what_is_left(l2: float):
    for seed in range(15):
        h, y = problem(60, 5, 3, seed)
        x = standard(h)
        curvature = x.square().mean(dim=0)
        best = minimise(x, y, 3, curvature, l2, tolerance=1e-13, evaluations=3000)
        for evaluations in (2, 3, 5, 10, 30):
            early = minimise(x, y, 3, curvature, l2, tolerance=1e-13, evaluations=evaluations)
            assert -1e-12 <= early.loss - best.loss <= early.gap + 1e-12
            assert early.converged == (early.gap <= 1e-13 * early.loss)
            assert early.evaluations <= evaluations


def test_start_and_coordinates_do_not_move_the_optimum():
    h, y = problem(200, 10, 4, seed=5)
    x = standard(h)
    cold = minimise(x, y, 4, x.square().mean(dim=0), 1e-3, tolerance=1e-7)
    g = torch.Generator().manual_seed(0)
    start = torch.randn(10, 4, generator=g).double(), torch.randn(4, generator=g).double()
    warm = minimise(x, y, 4, torch.rand(10, generator=g).double(), 1e-3, tolerance=1e-7, start=start)
    assert cold.converged
    assert warm.converged
    assert warm.loss == pytest.approx(cold.loss, rel=1e-7)
    torch.testing.assert_close(warm.weight, cold.weight, rtol=1e-2, atol=1e-2)


def test_the_eigenbasis_saves_steps():
    h, y = clusters(2000, 40, 10, noise=2.0, seed=6)
    x = standard(
        h
        @ torch.diag(torch.logspace(0, -3, 40))
        @ torch.randn(40, 40, generator=torch.Generator().manual_seed(0))
    )
    values, basis = torch.linalg.eigh(x.T @ x / len(x))
    turned = minimise(x @ basis, y, 10, values.clamp_min(0), 1e-4, tolerance=1e-3)
    plain = minimise(x, y, 10, torch.ones(40, dtype=torch.float64), 1e-4, tolerance=1e-3)
    assert turned.converged
    assert turned.evaluations < plain.evaluations / 2
    assert turned.loss == pytest.approx(plain.loss, rel=2e-3)


def test_the_strength_is_chosen_on_train_alone():
    train, test = split(*problem(300, 30, 6, seed=7)), split(*problem(200, 30, 6, seed=7, offset=1))
    result = linear_probe(train, test)
    shuffled = split(test.h, test.labels["kind"].values.flip(0), 6)
    other = linear_probe(train, shuffled)
    assert {n: result.settings[n] for n in result.chosen} == {n: other.settings[n] for n in other.chosen}
    tried = result.settings["l2_tried"]
    assert isinstance(tried, list)
    accuracies = [accuracy for _, accuracy in tried]  # type: ignore[misc]
    assert result.settings["l2_chosen"] == tried[accuracies.index(max(accuracies))][0]  # type: ignore[index]
    assert len(set(accuracies)) > 1
    # With its strength alone the probe gives the same number.
    alone = linear_probe(train, test, l2=result.settings["l2_chosen"])  # type: ignore[arg-type]
    assert alone.value == pytest.approx(result.value, abs=2 / 200)
    assert "l2_tried" not in alone.settings


def test_held_out_accuracy_is_what_scikit_learn_gets():
    train = split(*problem(400, 20, 5, seed=8))
    y = train.labels["kind"].values
    held = _held_out(y, 5, seed=3, validation=0.25)
    x = standard(train.h)  # standardised on all of train, as the probe does
    tried = linear_probe(train, train, l2=(1e-1, 1e-2), seed=3, validation=0.25).settings["l2_tried"]
    for l2, accuracy in tried:  # type: ignore[misc, union-attr]
        peer = LogisticRegression(C=1 / (l2 * int((~held).sum())), tol=1e-10, max_iter=10_000)
        peer.fit(x[~held].numpy(), y[~held].numpy())
        assert accuracy == pytest.approx(
            peer.score(x[held].numpy(), y[held].numpy()), abs=2 / int(held.sum())
        )


def test_the_walk_ends_after_two_worse_strengths():
    train = split(*clusters(400, 60, 4, noise=6.0, seed=1))
    tried = linear_probe(train, train, validation=0.5).settings["l2_tried"]
    accuracies = [accuracy for _, accuracy in tried]  # type: ignore[misc, union-attr]
    assert len(accuracies) < len(linear.L2)
    assert max(accuracies[-2:]) < max(accuracies)


def test_seeds():
    train, test = split(*problem(200, 30, 6, seed=9)), split(*problem(200, 30, 6, seed=9, offset=1))
    torch.manual_seed(1)
    first = linear_probe(train, test, seed=4)
    torch.manual_seed(2)
    assert linear_probe(train, test, seed=4) == first
    tried = [linear_probe(train, test, seed=s).settings["l2_tried"] for s in range(4)]
    assert any(other != tried[0] for other in tried[1:])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=80), st.floats(0.01, 0.99), st.integers(0, 99))
def test_the_held_out_part_is_stratified(labels: list[int], validation: float, seed: int):
    _, y = torch.unique(torch.tensor(labels), return_inverse=True)
    k = int(y.max()) + 1
    counts = torch.bincount(y, minlength=k)
    if int(counts.max()) == 1:
        with pytest.raises(ValueError, match=f"each of the {k} classes has one labelled sample"):
            _held_out(y, k, seed, validation)
        return
    held = torch.bincount(y[_held_out(y, k, seed, validation)], minlength=k)
    for count, out in zip(counts.tolist(), held.tolist(), strict=True):
        assert out < count
        assert out == 0 if count == 1 else out >= 1
        assert abs(out - validation * count) <= 1


def test_unit_and_origin_of_each_feature_do_not_matter():
    h, y = problem(200, 12, 4, seed=10)
    t, z = problem(150, 12, 4, seed=10, offset=1)
    unit, origin = torch.logspace(-6, 6, 12), torch.linspace(-3, 3, 12)
    plain = linear_probe(split(h, y), split(t, z))
    moved = linear_probe(split((h + origin) * unit, y), split((t + origin) * unit, z))
    assert moved.settings["l2_chosen"] == plain.settings["l2_chosen"]
    assert moved.value == pytest.approx(plain.value, abs=2 / 150)


def test_a_constant_feature_says_nothing():
    h, y = problem(200, 6, 4, seed=11)
    t, z = problem(150, 6, 4, seed=11, offset=1)
    plain = linear_probe(split(h, y), split(t, z))
    for constant, wobble, there in ((0.0, 0.0, 0.0), (100.0, 0.0, -5000.0), (1000.0, 6e-5, 1e6)):
        column = constant + wobble * torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
        other = torch.full((150, 1), there)
        wider = linear_probe(split(torch.cat([h, column], 1), y), split(torch.cat([t, other], 1), z))
        assert wider.value == plain.value


def test_a_collapsed_encoder_gets_the_most_frequent_class():
    train, test = (
        split(torch.ones(30, 4), [0] * 10 + [1] * 20),
        split(torch.ones(8, 4), [0, 1, 1, 1, 0, 1, 1, 0]),
    )
    result = linear_probe(train, test)
    assert result.value == 5 / 8
    assert result.settings["converged"] is True


def test_separable_data_are_separated():
    train, test = split(torch.eye(6).repeat(4, 1), torch.arange(24) % 6), split(torch.eye(6), torch.arange(6))
    for l2 in (linear.L2, 1e-6):
        result = linear_probe(train, test, l2=l2)
        assert (result.value, result.settings["converged"]) == (1.0, True)


def test_labels_may_have_holes():
    h, y = problem(200, 8, 3, seed=12)
    t, z = problem(90, 8, 3, seed=12, offset=1)
    far = torch.tensor([2, 5, 9])
    plain, holes = (
        linear_probe(split(h, y), split(t, z)),
        linear_probe(split(h, far[y], 11), split(t, far[z], 11)),
    )
    assert holes.value == plain.value
    z[:30] = 1  # a class that training never saw: these count as errors
    far = torch.tensor([2, 4, 9])
    unseen = linear_probe(split(h[y != 1], far[y[y != 1]], 11), split(t, far[z], 11))
    assert unseen.settings["test_n_unseen"] == int((z == 1).sum())
    assert unseen.n == 90
    assert unseen.value <= 1 - int((z == 1).sum()) / 90


def test_predictions_are_labels():
    h, y = problem(100, 8, 3, seed=13)
    probe = fit_probe(h, y + 4, [1e-3], seed=0, validation=0.1)
    assert probe.classes.tolist() == [4, 5, 6]
    assert float((probe.predict(h) == y + 4).double().mean()) > 0.7


def test_one_fit_serves_several_splits():
    train = split(*problem(200, 8, 3, seed=14))
    tests = [split(*problem(90, 8, 3, seed=14, offset=o), name=f"t{o}") for o in (1, 2)]
    assert linear_probes(train, tests) == [linear_probe(train, test) for test in tests]


def test_a_fit_that_does_not_converge_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(linear, "FINAL", 0.0)
    train = split(*problem(200, 8, 3, seed=15))
    result = linear_probe(train, train, l2=1e-3)
    assert result.settings["converged"] is False
    assert 0 < float(np.float64(result.settings["gap"])) < 1e-6  # type: ignore[arg-type]


def test_settings_say_what_decided_the_number():
    train = split(*problem(50, 8, 3, seed=16), name="a/train")
    result = linear_probe(train, train, l2=(0.01, 1, 0.1), seed=5, validation=0.2)
    asked = {name: value for name, value in result.settings.items() if name not in result.chosen}
    assert asked == {
        "layer": "h", "column": "kind", "train": "a/train", "test": "a/train", "train_n": 50,
        "train_unlabelled": 0, "test_unlabelled": 0, "train_classes": 3, "test_n_unseen": 0,
        "l2": [1.0, 0.1, 0.01], "seed": 5, "validation": 0.2,
    }  # fmt: skip
    assert set(result.chosen) == {
        "l2_tried", "validation_n", "l2_chosen", "converged", "evaluations", "loss", "gap",
    }  # fmt: skip
    assert (result.protocol, result.version, result.metric, result.n) == ("linear", 1, "accuracy", 50)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"l2": 0.0}, "l2 must be one or more finite numbers > 0, got 0.0"),
        ({"l2": (1.0, -1.0)}, "l2 must be"),
        ({"l2": ()}, "l2 must be"),
        ({"l2": math.inf}, "l2 must be"),
        ({"l2": math.nan}, "l2 must be"),
        ({"validation": 0.0}, "validation must lie between 0 and 1, got 0.0"),
        ({"validation": 1.0}, "validation must lie"),
    ],
)
def test_refuses_by_name(options: dict[str, Any], says: str):
    train = split(*clusters(20, 4, 3, noise=1.0, seed=0))
    with pytest.raises(ValueError, match=says):
        linear_probe(train, train, **options)


def test_refuses_data_that_leave_nothing_to_choose_on():
    each_once: Features = split(torch.eye(3), [0, 1, 2])
    with pytest.raises(
        ValueError, match=r"each of the 3 classes has one labelled sample\. Give l2 as one number"
    ):
        linear_probe(each_once, each_once)
    assert linear_probe(each_once, each_once, l2=0.1).value == 1.0
    with pytest.raises(ValueError, match="at least one split"):
        linear_probes(each_once, [])
