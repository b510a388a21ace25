"""`anchors`: parts of a batch make up the whole, in value, gradient and log, at the cost of their rows."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_objectives import TWINS, Twin, random_views
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from counterpoint.objectives import Hinge, NTXent, Objective, SupCon
from counterpoint.objectives.base import Known
from counterpoint.objectives.row_objective import RowObjective

OWN_ROWS = [t for t in TWINS if issubclass(t.module, RowObjective) and "one" not in t.name]  # type: ignore[arg-type]
EACH = pytest.mark.parametrize("twin", OWN_ROWS, ids=lambda twin: twin.name)
Side = dict[str, Tensor]
QUICK = settings(deadline=None, max_examples=8)


def parts_of(n: int, seed: int) -> list[slice]:
    """A partition of range(n) into up to four slices, of any lengths."""
    generator = torch.Generator().manual_seed(seed)
    cuts = {0, n, *torch.randint(1, n, (3,), generator=generator).tolist()} if n > 1 else {0, n}
    edges = sorted(cuts)
    return [slice(a, b) for a, b in pairwise(edges)]


def in_parts(
    objective: Objective,
    views: list[Tensor],
    side: dict[str, Tensor],
    parts: list[slice],
    alone: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and log of the whole from those of its parts; `alone` gives each its own rows of the target."""
    n, losses, logs = len(views[0]), [], []
    for part in parts:
        own = {k: v[part] if alone and k == "target" else v for k, v in side.items()}
        loss, log = objective.with_log(*views, **own, anchors=part)
        losses.append(loss)
        logs.append(log)
    shares = torch.tensor([(part.stop - part.start) / n for part in parts], dtype=torch.float64)
    log = {
        key: (torch.stack([log[key].double() for log in logs]) * shares).sum()
        for key in logs[0]
        if key != "loss"
    }
    return objective.combine(torch.stack(losses), shares), log


def assert_same(
    objective: Objective, views: list[Tensor], side: dict[str, Tensor], parts: list[slice], **how
):
    whole, whole_log = objective.with_log(*views, **side)
    loss, log = in_parts(objective, views, side, parts, **how)
    torch.testing.assert_close(loss, whole, rtol=1e-10, atol=1e-12)
    for key, value in log.items():
        torch.testing.assert_close(
            value, whole_log[key].double(), rtol=1e-6, atol=1e-7, msg=lambda m, k=key: k + m
        )
    expected = torch.autograd.grad(whole, views)
    torch.testing.assert_close(torch.autograd.grad(loss, views), expected, rtol=1e-8, atol=1e-11)


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


class Largest(TorchDispatchMode):
    """Notes how many entries the largest tensor has that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out):
            self.entries = max(self.entries, tensor.numel())
        return out


def tensors_in(out: object) -> Iterator[Tensor]:
    if isinstance(out, Tensor):
        yield out
    elif isinstance(out, tuple | list):
        for x in out:
            yield from tensors_in(x)


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


@pytest.mark.parametrize("anchors", [slice(2, 2), slice(3, 9), slice(0, 4, 2), slice(5, 1)])
def test_anchors_that_are_no_samples(anchors: slice):
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
