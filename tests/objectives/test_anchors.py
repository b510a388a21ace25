"""`anchors`: parts of a batch make up the whole, in value, gradient and log, at the cost of their rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parts_of_batches import Largest, assert_same, parts_of
from slow_objectives import TWINS, Twin, random_views

from counterpoint.objectives import Hinge, NTXent, SupCon
from counterpoint.objectives.base import Known
from counterpoint.objectives.row_objective import RowObjective

OWN_ROWS = [t for t in TWINS if issubclass(t.module, RowObjective) and "one" not in t.name]  # type: ignore[arg-type]
EACH = pytest.mark.parametrize("twin", OWN_ROWS, ids=lambda twin: twin.name)
QUICK = settings(deadline=None, max_examples=8)


@EACH
@QUICK
@given(n=st.integers(2, 9), seed=st.integers(0, 10_000), alone=st.booleans())
def test_parts_make_up_the_whole(twin: Twin, n: int, seed: int, alone: bool):
    v = twin.views[seed % len(twin.views)]
    views, side = random_views(v, n, seed=seed), twin.arguments(n, seed)
    assert_same(twin.module(**dict(twin.options)), views, side, parts_of(n, seed), alone=alone)


@EACH
def test_all_anchors_are_no_anchors(twin: Twin):
    views, side = random_views(2, 5), twin.arguments(5, seed=1)
    objective = twin.module(**dict(twin.options))
    assert torch.equal(objective(*views, **side, anchors=slice(0, 5)), objective(*views, **side))
    assert torch.equal(objective(*views, **side, anchors=slice(-5, None)), objective(*views, **side))


def test_a_part_without_positives_gives_0_and_the_others_make_up_for_it():
    (z,) = random_views(1, 6)
    side = {"labels": torch.tensor([0, 1, 2, 2, -1, 3])}
    objective = SupCon()
    loss, log = objective.with_log(z, **side, anchors=slice(0, 2))
    assert loss.item() == 0
    assert int(log["anchors_skipped"]) == 4
    assert torch.equal(torch.autograd.grad(loss, z)[0], torch.zeros_like(z))
    assert_same(objective, [z], side, [slice(0, 2), slice(2, 3), slice(3, 6)])


@EACH
def test_only_the_rows_of_anchors_are_computed(twin: Twin):
    n, a, v = 40, 5, 2
    views, side = random_views(v, n, d=2), twin.arguments(n, seed=1)
    objective = twin.module(**dict(twin.options))
    side = {k: x[10 : 10 + a] if k == "target" else x for k, x in side.items()}
    with Largest() as largest:
        objective(*views, **side, anchors=slice(10, 10 + a)).backward()
    assert largest.entries <= v * a * v * n


def test_a_sum_has_the_parts_of_its_terms():
    views = random_views(2, 6)
    assert_same(NTXent() + 0.5 * Hinge(), views, {}, [slice(0, 1), slice(1, 6)])
    total = NTXent(reduction="log_mean") + Hinge()
    assert not total.averages
    with pytest.raises(ValueError, match="combine the parts of each term"):
        total.combine(torch.ones(2), torch.full((2,), 0.5))


NO_ANCHORS = [
    slice(2, 2),
    slice(3, 9),
    slice(0, 4, 2),
    slice(5, 1),
    slice(0, 4, 0),
    slice("a"),
    slice(0.5, 2),
    3,
    [0, 1],
    torch.arange(2),
]


@pytest.mark.parametrize("anchors", NO_ANCHORS, ids=repr)
def test_anchors_that_are_no_samples(anchors: object):
    with pytest.raises(ValueError, match="anchors must be a slice of step 1"):
        NTXent()(*random_views(2, 5), anchors=anchors)


def test_a_target_for_other_rows():
    from counterpoint.objectives import xclr
    from counterpoint.objectives.xclr import XCLR

    views = random_views(2, 5)
    with pytest.raises(ValueError, match=r"shape \(5, 5\), or \(2, 5\) for the anchors alone"):
        XCLR()(*views, target=torch.eye(5)[:3], anchors=slice(0, 2))
    with pytest.raises(ValueError, match=r"shape \(5, 5\), got"):
        xclr(*views, target=torch.eye(5)[:3])


def test_rows_are_those_of_the_whole():
    views = random_views(3, 5)
    whole = NTXent().rows(views, Known())
    part = NTXent().rows(views, Known(anchors=slice(1, 3)))
    rows = [k * 5 + i for k in range(3) for i in (1, 2)]
    torch.testing.assert_close(part.scores, whole.scores[rows])
    assert torch.equal(part.target, whole.target[rows])
