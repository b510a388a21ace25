"""QARe against its slow twin, all permutations, and what holds whatever the views."""

from itertools import permutations

import pytest
import slow_qare
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_objectives import random_views
from torch import Tensor

from counterpoint.objectives import OBJECTIVES, XCLR, Hinge, NTXent, QARe, qare

SETTINGS = [
    {"form": form, "shift": shift, "clamp_min": clamp_min}
    for form in ("code", "gap", "gt")
    for shift, clamp_min in ((1.0, None), (0.0, None), (-1.0, None), (1.0, 1e-8), (-0.4, 1e-8))
]
GRAPH = [
    {"reference": "graph", "shift": shift, "clamp_min": clamp_min}
    for shift, clamp_min in ((1.0, None), (0.0, 1e-8), (-1.0, None))
]
ALL = [*SETTINGS, *GRAPH]
SIZES = [(2, 5), (3, 5), (5, 5), (6, 5), (7, 5), (9, 3), (10, 3)]
"""n and d: d above n, the change of sides at n = d and d + 1, zeros that meet in <>_- and that do not."""
QUICK = settings(deadline=None, max_examples=25)


def named(options: dict[str, object]) -> str:
    return "-".join(str(value) for value in options.values())


def some_target(n: int, seed: int = 0) -> Tensor:
    rows = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(rows, dim=1) @ torch.nn.functional.normalize(rows, dim=1).T


def side(options: dict[str, object], n: int) -> dict[str, Tensor]:
    return {"target": some_target(n)} if options.get("reference") == "graph" else {}


@pytest.mark.parametrize("options", ALL, ids=named)
def test_equals_slow(options):
    for v, (n, d) in [(2, size) for size in SIZES] + [(3, (7, 5)), (4, (5, 3))]:
        views = random_views(v, n, d=d, seed=n)
        fast, slow = (f(*views, **side(options, n), **options) for f in (qare, slow_qare.qare))
        torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
        expected = torch.autograd.grad(slow, views)
        torch.testing.assert_close(torch.autograd.grad(fast, views), expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("options", ALL, ids=named)
@pytest.mark.parametrize(("n", "d"), [(6, 3), (4, 6)])
def test_gradcheck(options, n: int, d: int):
    views = random_views(2, n, d=d, seed=3)
    assert torch.autograd.gradcheck(lambda *z: qare(*z, **side(options, n), **options), views)


@QUICK
@given(
    n=st.integers(2, 6),
    d=st.integers(1, 6),
    shift=st.sampled_from([1.0, 0.0, -1.0, 0.4]),
    seed=st.integers(0, 999),
)
def test_bounds_hold_for_every_permutation(n: int, d: int, shift: float, seed: int):
    views = random_views(2, n, d=d, seed=seed)
    code, gap, gt = (
        float(qare(*views, form=form, shift=shift)) * n * (n - 1) for form in ("code", "gap", "gt")
    )
    with torch.no_grad():
        a, b = (slow_qare.shifted(z, shift, None) for z in views)
        every = slow_qare.traces(a, b)
    lowest, true = code - gap, float((a * b).sum())
    assert lowest - 1e-9 <= min(every) <= true + 1e-9
    assert true - 1e-9 <= max(every) <= code + 1e-9
    assert gt == pytest.approx(true - lowest, abs=1e-9)
    assert -1e-9 <= true - min(every) <= gt + 1e-9  # the regret of the true matching is bounded by gt
    assert gt <= gap + 1e-9


def test_bounds_hold_for_all_5040_permutations_of_seven():
    a, b = (slow_qare.shifted(z, 1.0, None).detach() for z in random_views(2, 7, d=3))
    every = torch.stack([(a * b[p][:, p]).sum() for p in map(list, permutations(range(7)))])
    low, high = (
        float(slow_qare.product(*map(torch.linalg.eigvalsh, (a, b)), descending=x)) for x in (True, False)
    )
    assert len(every) == 5040
    assert low <= float(every.min()) <= float(every.max()) <= high


def test_a_collapsed_batch_has_the_largest_code_unless_the_shift_is_below_0():
    (z,) = random_views(1, 6, d=4)
    collapsed = z[:1].expand_as(z)
    for shift in (0.0, 0.4, 1.0):
        whole = qare(collapsed, collapsed, shift=shift)
        assert float(whole) == pytest.approx(6 / 5 * (1 + shift) ** 2)
        assert float(qare(z, z, shift=shift)) < float(whole)
    assert float(qare(collapsed, collapsed, shift=-1)) == pytest.approx(0, abs=1e-9)
    assert float(qare(z, z, shift=-1)) > 0.1


def test_equal_views_give_the_squared_norm():
    (z,) = random_views(1, 9, d=4)
    s = slow_qare.shifted(z, 1.0, None)
    torch.testing.assert_close(qare(z, z), s.square().sum() / 72, rtol=1e-12, atol=0)
    clamped = slow_qare.shifted(z, 1.0, 1e-8)
    torch.testing.assert_close(qare(z, z, clamp_min=1e-8), clamped.square().sum() / 72, rtol=1e-12, atol=0)


@QUICK
@given(
    n=st.integers(2, 9), d=st.integers(2, 6), at=st.integers(0, len(SETTINGS) - 1), seed=st.integers(0, 999)
)
def test_each_view_may_be_permuted_and_turned(n: int, d: int, at: int, seed: int):
    """Spectra do not know which sample is which, nor the axes; the trace of "gt" knows the first only."""
    options = SETTINGS[at]
    a, b = random_views(2, n, d=d, seed=seed)
    g = torch.Generator().manual_seed(seed)
    turn, _ = torch.linalg.qr(torch.randn(d, d, generator=g, dtype=torch.float64))
    order = torch.randperm(n, generator=g)
    moved = (a[order] @ turn, b[order] if options["form"] == "gt" else b)
    torch.testing.assert_close(qare(*moved, **options), qare(a, b, **options), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(qare(b, a, **options), qare(a, b, **options), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", ALL, ids=named)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize(
    "kind", ["collapsed", "repeated", "zero row", "all zero", "orthogonal", "two samples"]
)
def test_degenerate_batches_are_finite(options, dtype: torch.dtype, kind: str):
    rows = {
        "collapsed": torch.tensor([[0.5, -1.0, 2.0]]).repeat(7, 1),
        "repeated": torch.randn(3, 3, generator=torch.Generator().manual_seed(0))[[0, 1, 1, 2, 0, 1, 0]],
        "zero row": torch.cat([torch.eye(3), torch.zeros(4, 3)]),
        "all zero": torch.zeros(7, 3),
        "orthogonal": torch.eye(3)[[0, 1, 2, 0, 1, 2]],
        "two samples": torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0]]),
    }[kind]
    views = [rows.to(dtype).requires_grad_() for _ in range(2)]
    given_side = side(options, len(rows))
    loss, log = QARe(**options).with_log(*views, **given_side)
    exact = slow_qare.qare(*[z.detach().double() for z in views], **given_side, **options)
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(loss.double(), exact, rtol=2e-5, atol=2e-5)
    gradients = torch.autograd.grad(loss, views)
    assert all(g.isfinite().all() and g.dtype == dtype for g in gradients)
    assert all(value.isfinite() for value in log.values())
    if kind in ("zero row", "all zero"):
        assert all((g[3:] == 0).all() for g in gradients)


@pytest.mark.parametrize("options", ALL, ids=named)
def test_float32_and_autocast(options):
    views = random_views(2, 40, d=8, seed=5, dtype=torch.float32)
    exact = [z.detach().double().requires_grad_() for z in views]
    loss = qare(*views, **side(options, 40), **options)
    expected = qare(*exact, **side(options, 40), **options)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    found = torch.autograd.grad(loss, views)
    for g, e in zip(found, torch.autograd.grad(expected, exact), strict=True):
        torch.testing.assert_close(g.double(), e, rtol=1e-3, atol=1e-4 * float(e.abs().max()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = qare(*views, **side(options, 40), **options)
        inside = qare(*views, **side(options, 40), **options)
        assert all(map(torch.equal, torch.autograd.grad(inside, views), found))
    assert torch.equal(under, loss)
    assert all(map(torch.equal, torch.autograd.grad(under, views), found))


def test_gradient_is_the_closed_form():
    a, b = random_views(2, 6, d=5)
    s_a, s_b = (slow_qare.shifted(z, 1.0, None).detach().requires_grad_() for z in (a, b))
    lam_a, lam_b = torch.linalg.eigvalsh(s_a), torch.linalg.eigvalsh(s_b)
    (grad,) = torch.autograd.grad(slow_qare.product(lam_a, lam_b, descending=False), s_a)
    _, vectors = torch.linalg.eigh(s_a)
    torch.testing.assert_close(grad, vectors @ torch.diag(lam_b) @ vectors.T)
    # By the chain rule the gradient of the views is that of S times 2 U, less its part along each row.
    u = torch.nn.functional.normalize(a.detach(), dim=1)
    wide = 2 * grad @ u / 30
    expected = (wide - (wide * u).sum(1, keepdim=True) * u) / a.detach().norm(dim=1, keepdim=True)
    torch.testing.assert_close(torch.autograd.grad(qare(a, b), a)[0], expected)


def test_descent_lowers_similarities_and_a_negative_weight_raises_them():
    for weight, sign in ((1.0, -1), (-1.0, 1)):
        a, b = random_views(2, 12, d=4)
        ga, gb = torch.autograd.grad((weight * QARe())(a, b), [a, b])
        before, after = qare(a, b), qare(a - 0.5 * ga, b - 0.5 * gb)
        assert sign * (float(after) - float(before)) > 0


def test_as_a_term():
    views, target = random_views(2, 6), some_target(6)
    total = NTXent(tau=0.5) + 0.75 * QARe()
    loss, log = total.with_log(*views)
    torch.testing.assert_close(loss, NTXent(tau=0.5)(*views) + 0.75 * qare(*views))
    assert float(log["qare/loss"]) == pytest.approx(float(qare(*views)))
    assert {"effective_rank", "top_eigenvalue_share", "chance", "accuracy"} <= set(log)
    alone = NTXent(tau=0.5).with_log(*views)[1]
    assert float(log["loss"] - log["chance"]) == pytest.approx(float(alone["loss"] - alone["chance"]))
    soft = XCLR() + 0.5 * QARe()
    torch.testing.assert_close(
        soft(*views, target=target), XCLR()(*views, target=target) + 0.5 * qare(*views)
    )
    by_graph = Hinge() + QARe(reference="graph")
    assert by_graph.requires == ("target",)
    torch.testing.assert_close(
        by_graph(*views, target=target),
        Hinge()(*views) + qare(*views, target=target, reference="graph"),
    )
    assert QARe().accepts == ()
    assert QARe.accepts == ()


def test_log():
    _, log = QARe().with_log(torch.eye(4), torch.eye(4))
    share = torch.tensor([5.0, 1.0, 1.0, 1.0]) / 8
    assert float(log["top_eigenvalue_share"]) == pytest.approx(5 / 8)
    assert float(log["effective_rank"]) == pytest.approx(float(torch.exp(-(share * share.log()).sum())))
    _, log = QARe().with_log(torch.ones(5, 3), torch.ones(5, 3))
    assert float(log["effective_rank"]) == pytest.approx(1, abs=1e-4)


def test_graph_of_the_view_itself_is_zero_and_single_views_do():
    (z,) = random_views(1, 8, d=3)
    u = torch.nn.functional.normalize(z.detach(), dim=1)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    target = (u @ u.T)[order][:, order]
    assert float(qare(z, target=target, reference="graph")) < 1e-20
    assert float(qare(z, target=torch.eye(8, dtype=torch.float64), reference="graph")) > 0.01


@QUICK
@given(n=st.integers(2, 8), seed=st.integers(0, 999))
def test_graph_form_is_never_above_the_entrywise_distance(n: int, seed: int):
    """Hoffman and Wielandt: no pairing of the samples comes nearer than the spectra."""
    (z,) = random_views(1, n, d=3, seed=seed)
    target = some_target(n, seed + 1)
    entrywise = (slow_qare.shifted(z, 0.0, None) - target).square().sum() / (n * (n - 1))
    assert float(qare(z, target=target, reference="graph")) <= float(entrywise) + 1e-12


def test_nan_views_give_a_nan_loss_and_gradient():
    for options in ALL:
        z = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
        z[2, 1] = torch.nan
        z.requires_grad_()
        loss = qare(z, z * 1, **side(options, 8), **options)
        assert loss.isnan()
        (grad,) = torch.autograd.grad(loss, z)
        assert grad.shape == z.shape
        with pytest.raises(ValueError, match="QARe: view 0 must be finite, got 1 of 24"):
            QARe(**options).with_log(z, z, **side(options, 8))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"form": "B"}, "form must be one of code, gap, gt, got 'B'"),
        ({"reference": "target"}, "reference must be one of graph, view, got 'target'"),
        ({"shift": float("nan")}, "shift must be a number between -1000 and 1000, got nan"),
        ({"shift": "one"}, "shift must be a number between -1000 and 1000, got 'one'"),
        ({"shift": "1"}, "shift must be a number between -1000 and 1000, got '1'"),
        ({"shift": True}, "shift must be a number between -1000 and 1000, got True"),
        ({"clamp_min": b"1"}, "clamp_min must be a number between -1000 and 1000, got b'1'"),
        ({"clamp_min": float("-inf")}, "clamp_min must be a number between -1000 and 1000, got -inf"),
        ({"form": "gt", "reference": "graph"}, "form belongs to reference=\"view\", got form='gt'"),
    ],
)
def test_bad_options(options, words: str):
    with pytest.raises(ValueError, match=words):
        QARe(**options)
    with pytest.raises(ValueError, match=words):
        qare(torch.eye(3), torch.eye(3), **options)


def test_bad_inputs():
    z = torch.eye(3)
    with pytest.raises(ValueError, match=r"at least 2 samples, got 1: it divides by n \(n - 1\)"):
        qare(z[:1], z[:1])
    with pytest.raises(ValueError, match="QARe needs at least 2 view"):
        qare(z)
    with pytest.raises(ValueError, match="uses target only with"):
        qare(z, z, target=z)
    with pytest.raises(ValueError, match="QARe does not use target"):
        QARe()(z, z, target=z)
    with pytest.raises(ValueError, match="requires target"):
        qare(z, z, reference="graph")
    # Its spectrum, squared in float32, would be infinite with nothing said.
    with pytest.raises(ValueError, match=r"on the scale of cosines .* got an entry of size 1e\+20"):
        qare(z, z, target=1e20 * z, reference="graph")
    assert torch.isfinite(qare(z, z, target=1000 * z, reference="graph"))
    with pytest.raises(ValueError, match="QARe requires target"):
        QARe(reference="graph")(z, z)
    with pytest.raises(ValueError, match="must be symmetric for QARe, got entries that differ by 1 "):
        qare(z, target=torch.tensor([[1.0, 1, 0], [0, 1, 0], [0, 0, 1]]), reference="graph")
    with pytest.raises(ValueError, match=r"target must be a floating tensor of shape \(3, 3\)"):
        qare(z, target=torch.eye(4), reference="graph")


def test_module_equals_function_and_is_registered():
    views = random_views(2, 6)
    for options in ALL:
        given_side = side(options, 6)
        loss, log = QARe(**options).with_log(*views, **given_side)
        assert torch.equal(loss, qare(*views, **given_side, **options))
        assert torch.equal(QARe(**options)(*views, **given_side), loss)
        assert next(iter(log)) == "loss"
        assert all(value.ndim == 0 and not value.requires_grad for value in log.values())
    assert OBJECTIVES["qare"] is QARe
    assert "form='gap', shift=-1.0" in repr(QARe(form="gap", shift=-1))
