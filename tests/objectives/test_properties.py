"""What holds whatever the views: order of samples, order of views, bounds, relations between objectives."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_objectives import TWINS, Twin, random_views
from torch import Tensor

from counterpoint.objectives import OBJECTIVES, clip, hinge, infonce, ntxent, supcon, triplet, xclr

EACH = pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
SYMMETRIC = pytest.mark.parametrize(
    "twin", [t for t in TWINS if not t.name.startswith("infonce")], ids=lambda twin: twin.name
)
SIZE, SEED = st.integers(2, 9), st.integers(0, 10_000)
QUICK = settings(deadline=None, max_examples=25)


def permuted(side: dict[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    return {key: value[order][:, order] if key == "target" else value[order] for key, value in side.items()}


@EACH
@QUICK
@given(n=SIZE, seed=SEED)
def test_order_of_samples_does_not_matter(twin: Twin, n: int, seed: int):
    views, side, options = random_views(2, n, seed=seed), twin.arguments(n, seed), dict(twin.options)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    loss, log = twin.module(**options).with_log(*views, **side)
    loss_after, log_after = twin.module(**options).with_log(
        *[z[order] for z in views], **permuted(side, order)
    )
    torch.testing.assert_close(loss_after, loss, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(log_after, log, rtol=1e-6, atol=1e-9)


@SYMMETRIC
@QUICK
@given(n=SIZE, seed=SEED)
def test_order_of_views_does_not_matter(twin: Twin, n: int, seed: int):
    views, side, options = (
        random_views(twin.views[-1], n, seed=seed),
        twin.arguments(n, seed),
        dict(twin.options),
    )
    turned = twin.fast(*views[1:], views[0], **side, **options)
    torch.testing.assert_close(turned, twin.fast(*views, **side, **options), rtol=1e-10, atol=1e-12)


@EACH
@QUICK
@given(n=SIZE, seed=SEED)
def test_log_makes_sense(twin: Twin, n: int, seed: int):
    views, side = random_views(2, n, seed=seed), twin.arguments(n, seed)
    _, log = twin.module(**dict(twin.options)).with_log(*views, **side)
    assert 0 <= float(log["accuracy"]) <= 1
    if "chance" in log:
        collapsed = twin.module(**dict(twin.options))(*[torch.ones_like(z) for z in views], **side)
        assert float(log["chance"]) == pytest.approx(collapsed.item(), abs=1e-9)
        if "support" not in log:
            assert float(log["chance"]) == pytest.approx(math.log(int(log["candidates"])))
        else:
            assert 1 <= float(log["support"]) <= int(log["candidates"])
        assert -1e-9 <= float(log["target_entropy"]) <= float(log["chance"]) + 1e-6
        assert float(log["kl"]) >= -1e-6
        assert float(log["loss"]) <= float(log["kl"]) + float(log["target_entropy"]) + 1e-6
    elif "active" in log:
        assert 0 <= float(log["active"]) <= 1
        assert (float(log["loss"]) > 0) == (float(log["active"]) > 0) or twin.name == "assignment-smooth"
    else:
        assert twin.name.startswith("ntlogistic")


@QUICK
@given(n=SIZE, v=st.integers(2, 4), seed=SEED)
def test_xclr_at_tau_s_to_0_is_ntxent_for_an_identity_graph(n: int, v: int, seed: int):
    views = random_views(v, n, seed=seed, dtype=torch.float32)
    for tau_s in (1e-4, 1e-5):
        loss = xclr(*views, target=torch.eye(n), tau=0.1, tau_s=tau_s)
        torch.testing.assert_close(loss, ntxent(*views, tau=0.1), rtol=1e-6, atol=1e-6)


@QUICK
@given(n=SIZE, v=st.integers(1, 4), seed=SEED)
def test_xclr_at_tau_s_to_0_is_supcon_for_a_class_graph(n: int, v: int, seed: int):
    labels = torch.randint(0, 3, (n,), generator=torch.Generator().manual_seed(seed))
    labels[-1] = labels[0]
    if v == 1:  # every anchor needs a positive, or X-CLR falls back on the most similar of the others
        labels = labels * 0
    views = random_views(v, n, seed=seed, dtype=torch.float32)
    graph = torch.where(labels[:, None] == labels, 1.0, 0.3)
    for tau_s in (1e-4, 1e-5):
        loss = xclr(*views, target=graph, tau=0.1, tau_s=tau_s)
        torch.testing.assert_close(loss, supcon(*views, labels=labels, tau=0.1), rtol=1e-6, atol=1e-6)


def test_xclr_at_tau_s_to_infinity_has_a_uniform_target():
    views = random_views(2, 6)
    one_class = supcon(*views, labels=torch.zeros(6, dtype=torch.int64))
    loss = xclr(*views, target=torch.eye(6), tau_s=1e9)
    torch.testing.assert_close(loss, one_class, rtol=1e-7, atol=0)


def test_supcon_with_all_different_or_no_labels_is_ntxent():
    views = random_views(3, 5)
    expected = ntxent(*views, tau=0.1)
    torch.testing.assert_close(supcon(*views, labels=torch.arange(5)), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(supcon(*views, labels=torch.full((5,), -1)), expected, rtol=1e-12, atol=0)


def test_clip_is_infonce_both_ways():
    z0, z1 = random_views(2, 6)
    both = (infonce(z0, z1, tau=0.3) + infonce(z1, z0, tau=0.3)) / 2
    torch.testing.assert_close(clip(z0, z1, tau=0.3), both, rtol=1e-12, atol=0)


def test_infonce_at_tau_to_0_is_triplet_without_margin():
    z0, z1 = random_views(2, 6)
    tau = 1e-5
    both = tau * (infonce(z0, z1, tau=tau) + infonce(z1, z0, tau=tau)) / 2
    torch.testing.assert_close(both, triplet(z0, z1, margin=1e-12), rtol=1e-4, atol=1e-4)


@QUICK
@given(n=SIZE, seed=SEED)
def test_hinge_is_never_above_triplet(n: int, seed: int):
    views = random_views(2, n, seed=seed)
    assert hinge(*views).item() <= triplet(*views).item() + 1e-12
    if n == 2:
        torch.testing.assert_close(hinge(*views), triplet(*views), rtol=1e-12, atol=1e-12)


@QUICK
@given(n=SIZE, v=st.integers(2, 4), seed=SEED)
def test_log_mean_is_never_above_mean_log(n: int, v: int, seed: int):
    views = random_views(v, n, seed=seed)
    assert ntxent(*views, reduction="log_mean").item() <= ntxent(*views).item() + 1e-12


@pytest.mark.parametrize("name", ["infonce", "ntxent", "clip", "triplet", "hinge", "sparseclr", "ntlogistic"])
def test_different_ids_change_nothing(name: str):
    views = random_views(2, 6)
    objective = OBJECTIVES[name]()
    plain, plain_log = objective.with_log(*views)
    with_ids, ids_log = objective.with_log(*views, ids=torch.tensor([4, 9, -3, 0, 7, 100]))
    torch.testing.assert_close(with_ids, plain, rtol=1e-12, atol=0)
    torch.testing.assert_close(ids_log, plain_log, check_dtype=False, rtol=1e-6, atol=1e-7)
