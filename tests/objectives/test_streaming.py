"""By tiles and blocks: the slow twin's value, the table's gradient and log, and no table anywhere."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parts_of_batches import Largest, assert_same, parts_of
from slow_objectives import TWINS, Twin, random_views
from torch import Tensor

from counterpoint.objectives import (
    CLIP,
    XCLR,
    InfoNCE,
    NTXent,
    Objective,
    SparseCLR,
    SupCon,
    WeightedSum,
    streamed,
)
from counterpoint.objectives.base import Known
from counterpoint.objectives.rows import Rows
from counterpoint.objectives.streamed import FROM, StreamedObjective
from counterpoint.ranks import AcrossRanks

STREAMED = [t for t in TWINS if issubclass(t.module, StreamedObjective)]  # type: ignore[arg-type]
EACH = pytest.mark.parametrize("twin", STREAMED, ids=lambda twin: twin.name)
QUICK = settings(deadline=None, max_examples=4)
CHUNKS = (1, 3, 4, 7, 1000, 10**30)


class SoftTiles:
    """A similarity from features, as a graph of texts has it."""

    def __init__(self, features: Tensor, helpful: bool = False) -> None:
        self.features = features
        if helpful:
            self.symmetric, self.bounds = True, (-1.0, 1.0)

    def __len__(self) -> int:
        return len(self.features)

    def tile(self, rows: slice, columns: slice) -> Tensor:
        return self.features[rows] @ self.features[columns].T


def features(n: int, seed: int = 0, d: int = 4) -> Tensor:
    z = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(z, dim=1)


def assert_same_as_table(table: Objective, streamed: Objective, views: list[Tensor], side: dict[str, Tensor]):
    """Value, log and gradient, with those of parameters."""
    loss, log = streamed.with_log(*views, **side)
    expected, expected_log = table.with_log(*views, **side)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(streamed(*views, **side), loss, rtol=0, atol=0)
    assert log.keys() == expected_log.keys()
    torch.testing.assert_close(log, expected_log, rtol=1e-6, atol=1e-7, check_dtype=False)
    inputs = [views + list(objective.parameters()) for objective in (streamed, table)]
    torch.testing.assert_close(
        torch.autograd.grad(loss, inputs[0]),
        torch.autograd.grad(expected, inputs[1]),
        rtol=1e-7,
        atol=1e-10,
    )


@EACH
@QUICK
@given(n=st.integers(2, 9), seed=st.integers(0, 10_000), chunk=st.sampled_from(CHUNKS))
def test_equals_slow_and_the_table(twin: Twin, n: int, seed: int, chunk: int):
    views = random_views(twin.views[seed % len(twin.views)], n, seed=seed)
    side, options = twin.arguments(n, seed), dict(twin.options)
    streamed, table = (twin.module(**options, chunk_size=size) for size in (chunk, None))
    assert_same_as_table(table, streamed, views, side)
    slow = twin.slow(*views, **side, **options)
    torch.testing.assert_close(streamed(*views, **side), slow, rtol=1e-9, atol=1e-11)


@EACH
@QUICK
@given(n=st.integers(2, 9), seed=st.integers(0, 10_000), alone=st.booleans())
def test_parts_make_up_the_whole(twin: Twin, n: int, seed: int, alone: bool):
    views, side = random_views(twin.views[seed % len(twin.views)], n, seed=seed), twin.arguments(n, seed)
    objective = twin.module(**dict(twin.options), chunk_size=CHUNKS[seed % len(CHUNKS)])
    assert_same(objective, views, side, parts_of(n, seed), alone=alone)


@pytest.mark.parametrize(
    "name", ["infonce", "infonce-ids", "ntxent", "ntxent-ids", "clip", "clip-ids", "supcon", "xclr"]
)
@pytest.mark.parametrize("tau", [0.002, 1e-5])
def test_scores_too_large_for_exp(name: str, tau: float):
    """Those whose largest is taken off: for float64 below a tau of 1/300."""
    (twin,) = (t for t in TWINS if t.name == name)
    views, side = random_views(2, 7, seed=3), twin.arguments(7, seed=3)
    for chunk in (2, 5):
        streamed = twin.module(tau=tau, chunk_size=chunk)
        assert_same_as_table(twin.module(tau=tau, chunk_size=None), streamed, views, side)
        assert_same(streamed, views, side, [slice(0, 2), slice(2, 7)])


@EACH
@pytest.mark.parametrize("kind", ["repeated", "collapsed", "zero", "all_zero"])
def test_degenerate_batches(twin: Twin, kind: str):
    first, second = (z.detach() for z in random_views(2, 5))
    if kind == "repeated":
        first, second = first[[0, 1, 0, 2, 1]], second[[0, 1, 0, 2, 1]]
    elif kind == "collapsed":
        first, second = first[[0] * 5], first[[0] * 5]
    elif kind == "zero":
        first[1] = 0
    else:
        first, second = first * 0, second * 0
    views, side = [first.requires_grad_(), second.clone().requires_grad_()], twin.arguments(5, seed=2)
    options = dict(twin.options)
    streamed, table = (twin.module(**options, chunk_size=size) for size in (3, None))
    if "argmax" in options.values():  # rounding breaks its ties
        torch.testing.assert_close(streamed(*views, **side), table(*views, **side))
    else:
        assert_same_as_table(table, streamed, views, side)
    grads = torch.autograd.grad(streamed(*views, **side), views)
    assert all(g.isfinite().all() for g in grads)
    if kind == "zero":
        assert (grads[0][1] == 0).all()


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_low_precision_inputs_and_autocast(twin: Twin, dtype: torch.dtype):
    views = random_views(2, 6, seed=4, dtype=dtype)
    exact = [z.detach().double().requires_grad_() for z in views]
    side, options = twin.arguments(6, seed=4), dict(twin.options)
    streamed = twin.module(**options, chunk_size=4)
    loss, slow = streamed(*views, **side), twin.slow(*exact, **side, **options)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), slow, rtol=1e-5, atol=1e-5)
    tolerance = 1e-4 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    grads = torch.autograd.grad(loss, views)
    for g, expected in zip(grads, torch.autograd.grad(slow, exact), strict=True):
        atol = tolerance * float(expected.abs().max())
        torch.testing.assert_close(g.double(), expected, rtol=tolerance, atol=atol)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = streamed(*views, **side)
        inside_grads = torch.autograd.grad(inside, views)
    assert torch.equal(inside, loss)
    assert all(map(torch.equal, inside_grads, grads))


@EACH
def test_gradcheck(twin: Twin):
    side, objective = twin.arguments(4, seed=6), twin.module(**dict(twin.options), chunk_size=3)
    assert torch.autograd.gradcheck(lambda *z: objective(*z, **side), random_views(2, 4, seed=6))


@EACH
@pytest.mark.parametrize("with_log", [False, True])
def test_no_table_exists(twin: Twin, with_log: bool):
    n, chunk = 96, 8
    views = random_views(2, n, d=2, dtype=torch.float32)
    objective = twin.module(**dict(twin.options), chunk_size=chunk)
    side = twin.arguments(n, seed=1)
    if "target" in side:
        side["target"] = SoftTiles(features(n))
    with Largest() as largest:
        loss = objective.with_log(*views, **side)[0] if with_log else objective(*views, **side)
        loss.backward()
    # A block of whole rows is 8 x 192; vectors of both views are 192 x 2. One column of a target is no more.
    assert largest.entries <= chunk * 2 * n
    if objective.map == "softmax" and not with_log:
        assert largest.entries <= max(chunk**2, 2 * n * 2 * 2)


@QUICK
@given(n=st.integers(1, 9), v=st.integers(1, 3), seed=st.integers(0, 999), chunk=st.sampled_from(CHUNKS))
@pytest.mark.parametrize("tau_s", [0.3, 0.001])
@pytest.mark.parametrize("helpful", [False, True])
def test_tiles_of_features(helpful: bool, tau_s: float, n: int, v: int, seed: int, chunk: int):
    n = max(n, 3 - v)
    views, tiles = random_views(v, n, seed=seed), SoftTiles(features(n, seed), helpful)
    everything = tiles.tile(slice(0, n), slice(0, n))
    table = XCLR(tau=0.2, tau_s=tau_s, chunk_size=None)
    streamed = XCLR(tau=0.2, tau_s=tau_s, chunk_size=chunk)
    assert_same_as_table(table, streamed, views, {"target": everything})
    torch.testing.assert_close(streamed(*views, target=tiles), table(*views, target=everything))
    torch.testing.assert_close(table(*views, target=tiles), table(*views, target=everything))
    assert_same(streamed, views, {"target": tiles}, parts_of(n, seed))


@pytest.mark.parametrize("layout", ["all_views", "inter_view"])
def test_sparseclr_takes_tiles(layout: str):
    views, tiles = random_views(2, 7), SoftTiles(features(7))
    everything = tiles.tile(slice(0, 7), slice(0, 7))
    loss = SparseCLR(layout=layout, chunk_size=3)(*views, target=tiles)
    torch.testing.assert_close(loss, SparseCLR(layout=layout, chunk_size=None)(*views, target=everything))


def test_half_of_the_tiles_are_asked_for_where_the_similarity_is_symmetric():
    asked: list[tuple[slice, slice]] = []

    class Counted(SoftTiles):
        def tile(self, rows: slice, columns: slice) -> Tensor:
            asked.append((rows, columns))
            return super().tile(rows, columns)

    z0, z1 = random_views(2, 8)
    for helpful, tiles in ((True, 10), (False, 16)):
        asked.clear()
        XCLR(chunk_size=4)(z0, z1, target=Counted(features(8), helpful))
        assert len(asked) == tiles


@pytest.mark.parametrize("tau", [0.07, 0.0125])
@pytest.mark.parametrize("map", ["softmax", "sparsemax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_learned_temperature_gets_its_gradient(tau: float, map: str, dtype: torch.dtype):
    views = random_views(2, 9, dtype=dtype)
    table, streamed = (CLIP(tau, learnable=True, map=map, chunk_size=size) for size in (None, 4))
    table(*views).backward()
    expected = [table.log_scale.grad, *(z.grad for z in views)]
    views = random_views(2, 9, dtype=dtype)
    streamed(*views).backward()
    torch.testing.assert_close(
        [streamed.log_scale.grad, *(z.grad for z in views)], expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.filterwarnings("error")
def test_a_learned_temperature_is_read_without_a_warning():
    torch.set_warn_always(True)  # else torch says each but once
    try:
        objective = CLIP(learnable=True, chunk_size=4)
        objective(*random_views(2, 9)).backward()
        assert "tau=0.07" in repr(objective)
    finally:
        torch.set_warn_always(False)


@pytest.mark.parametrize("objective", [InfoNCE, NTXent])
@pytest.mark.parametrize("m", [0, 1, 6, 11])
@pytest.mark.parametrize("v", [2, 3])
@pytest.mark.parametrize("ids", [None, torch.tensor([0, 1, 1, 2, 0])])
def test_negatives_of_a_queue(objective: type[StreamedObjective], m: int, v: int, ids: Tensor | None):
    views = random_views(v, 5)
    negatives = random_views(1, m, seed=9)[0]
    side = {"negatives": negatives} if ids is None else {"negatives": negatives, "ids": ids}
    table = objective(tau=0.3, chunk_size=None)
    for chunk in (3, 100):
        assert_same_as_table(table, objective(tau=0.3, chunk_size=chunk), views, side)
        assert_same(objective(tau=0.3, chunk_size=chunk), views, side, [slice(0, 2), slice(2, 5)])
    loss, log = table.with_log(*views, **side)
    candidates = (5 if objective is InfoNCE else 5 * v - 1) + m
    assert int(log["candidates"]) == candidates
    assert float(log["chance"]) == pytest.approx(math.log(candidates))
    without = table(*views, **{k: x for k, x in side.items() if k != "negatives"})
    assert (loss > without).item() == (m > 0)
    loss.backward()
    assert negatives.grad is None


def test_negatives_by_hand():
    """The anchor's other view, one other sample's view, and two from the queue."""
    cosines = torch.tensor([0.9, 0.1, -0.3, 0.5], dtype=torch.float64)
    rows = torch.stack([cosines, (1 - cosines**2).sqrt()], 1)
    anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    expected = (torch.logsumexp(cosines / 0.5, 0) - 0.9 / 0.5).item()
    loss = InfoNCE(tau=0.5)(anchor, rows[:2] * 7, negatives=rows[2:] * 3, anchors=slice(0, 1))
    assert loss.item() == pytest.approx(expected)


@pytest.mark.parametrize("chunk", [None, 3])
def test_negatives_of_any_length_of_vector(chunk: int | None):
    """Too long to be squared in float32, or with no direction at all."""
    views = random_views(2, 5, d=4, dtype=torch.float32)
    negatives = random_views(1, 3, d=4, seed=9, dtype=torch.float32)[0].detach()
    objective = InfoNCE(tau=0.3, chunk_size=chunk)
    expected = objective(*views, negatives=negatives)
    torch.testing.assert_close(objective(*views, negatives=negatives * 1e30), expected)
    nothing = objective(*views, negatives=torch.zeros(1, 4))
    torch.testing.assert_close(nothing, objective(*views, negatives=torch.full((1, 4), 1e-20)))


def test_bad_negatives():
    views = random_views(2, 5, d=4)
    for bad in (torch.ones(3, 5), torch.ones(4), torch.ones(3, 4, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"negatives must be a floating tensor \(m, 4\)"):
            NTXent()(*views, negatives=bad)
    with pytest.raises(ValueError, match="negatives must be finite, got 1 of 12 NaN or infinite"):
        NTXent().with_log(
            *views, negatives=torch.ones(12).index_fill(0, torch.tensor(5), torch.nan).view(3, 4)
        )
    with pytest.raises(ValueError, match="SupCon does not use negatives"):
        SupCon()(*views, labels=torch.zeros(5, dtype=torch.int64), negatives=torch.ones(3, 4))


@pytest.mark.parametrize("bad", [0, -1, True, 2.0, "big", [4]])
@pytest.mark.parametrize("objective", [InfoNCE, NTXent, CLIP, SupCon, XCLR, SparseCLR])
def test_bad_chunk_size(objective: type[StreamedObjective], bad: object):
    with pytest.raises(ValueError, match="chunk_size must be None, 'auto' or an integer of at least 1, got"):
        objective(chunk_size=bad)


def test_auto_chooses_by_size():
    assert not NTXent().streams(FROM // 2 - 1)
    assert NTXent().streams(FROM // 2)
    assert not NTXent(map="sparsemax").streams(FROM)
    assert SparseCLR().streams(2**15)
    assert not NTXent(chunk_size=None).streams(2**15)
    assert NTXent(chunk_size=2**15).streams(2)
    total = XCLR(chunk_size=None) + NTXent(chunk_size=4)
    assert not total.streams(10)  # whose target nobody takes by tiles
    assert WeightedSum([XCLR(chunk_size=4), NTXent()], [1.0, 1.0]).streams(10)


def test_auto_counts_the_rows_of_all_views():
    """A table has as many rows as there are views of samples: one of 8 views is 16 times that of 2."""
    for objective in (XCLR(), AcrossRanks(XCLR()), XCLR() + NTXent()):
        for views in (1, 2, 8):
            assert objective.streams(FROM // views, views)
            assert not objective.streams(FROM // views - 1, views)
    blocks = NTXent(map="sparsemax")
    assert blocks.streams(256, 8)
    assert not blocks.streams(256, 2)


def test_a_batch_is_taken_as_its_rows_say(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streamed, "TABLE", 12**2)
    monkeypatch.setattr(streamed, "BLOCK", 12 * 3)
    calls = []

    class Counted(NTXent):
        def unit_rows(self, z: Sequence[Tensor], known: Known) -> Rows:
            calls.append(known.anchors)
            return super().unit_rows(z, known)

    for views, blocks in ((2, 1), (3, 4)):
        calls.clear()
        Counted(map="sparsemax")(*random_views(views, 4))
        assert len(calls) == blocks


@pytest.mark.parametrize("name", ["ntxent", "supcon", "xclr", "clip", "infonce", "sparseclr"])
def test_auto_equals_the_table(name: str):
    (twin,) = (t for t in TWINS if t.name == name)
    n = FROM // 2 + 5
    views, side = random_views(2, n, d=8), twin.arguments(n, seed=1)
    assert_same_as_table(twin.module(chunk_size=None), twin.module(), views, side)


def test_tiles_that_do_not_fit():
    views = random_views(2, 5)
    for objective in (XCLR(chunk_size=2), XCLR(chunk_size=None)):
        with pytest.raises(ValueError, match="target must give tiles of 5 samples, got those of 4"):
            objective(*views, target=SoftTiles(features(4)))

    class Transposed(SoftTiles):
        def tile(self, rows: slice, columns: slice) -> Tensor:
            return super().tile(columns, rows)

    with pytest.raises(ValueError, match=r"must be a floating tensor of shape \(2, 1\)"):
        XCLR(chunk_size=4)(*views, target=Transposed(features(5)))


def test_without_a_gradient_none_is_computed():
    views = [z.detach() for z in random_views(2, 6)]
    for objective in (SparseCLR(chunk_size=4), NTXent(chunk_size=4), InfoNCE(map="entmax15", chunk_size=4)):
        assert not objective(*views).requires_grad
        views[0].requires_grad_()
        assert objective(*views).requires_grad
        with torch.no_grad():
            assert not objective(*views).requires_grad
        views[0].requires_grad_(False)


def test_a_view_without_a_gradient():
    z0, z1 = random_views(2, 6)
    for objective in (NTXent(chunk_size=4), CLIP(chunk_size=4), SparseCLR(chunk_size=4)):
        (expected, _) = torch.autograd.grad(objective(z0, z1), [z0, z1])
        (alone,) = torch.autograd.grad(objective(z0, z1.detach()), [z0])
        torch.testing.assert_close(alone, expected)


@pytest.mark.parametrize("chunk", [None, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["infonce", "ntxent", "clip", "supcon", "xclr"])
def test_sharp_temperature_and_long_vectors(name: str, dtype: torch.dtype, chunk: int | None):
    (twin,) = (t for t in TWINS if t.name == name)
    views = [(z.detach() * 1e3 / z.detach().norm(dim=1, keepdim=True)).to(dtype) for z in random_views(2, 24)]
    exact, side = [z.double() for z in views], twin.arguments(24, seed=5)
    loss = twin.module(tau=0.01, chunk_size=chunk)(*views, **side)
    expected = twin.module(tau=0.01, chunk_size=None)(*exact, **side)
    assert abs(loss.item() - expected.item()) <= 1e-2


@pytest.mark.parametrize("objective", [NTXent(chunk_size=8), NTXent(chunk_size=None)])
def test_compiles_with_a_batch_that_changes(objective: Objective):
    compiled = torch.compile(objective, backend="eager")
    for n in (12, 7, 12):
        views = random_views(2, n, dtype=torch.float32)
        loss = compiled(*views)
        torch.testing.assert_close(loss, objective(*views))
        torch.testing.assert_close(
            torch.autograd.grad(loss, views), torch.autograd.grad(objective(*views), views)
        )
