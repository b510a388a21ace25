"""What the Triton kernels are checked by; `test_triton.py` runs this under Triton's interpreter.

Triton asks for its interpreter when it is imported, so all of this needs a process of its own.
"""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from counterpoint.objectives import CLIP, XCLR, InfoNCE, NTXent, Objective, SupCon, triton_softmax
from counterpoint.objectives import triton_kernels as kernels
from counterpoint.objectives.base import Known
from counterpoint.objectives.streaming import Plan, log_sum_exp
from counterpoint.similarity import ClassGraph, EmbeddingGraph

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # rows beyond the last: no sum, log of 0


@pytest.fixture(autouse=True)
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were launched, so that a check cannot pass by torch's tiles."""
    seen: list[str] = []

    def counted(name: str):
        real = getattr(kernels, name)
        monkeypatch.setattr(kernels, name, lambda *a: (seen.append(name), real(*a))[1])

    counted("sums")
    counted("gradient")
    return seen


def random_views(
    n: int, d: int, v: int = 2, dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(n, d, generator=generator)
    return [(base + torch.randn(n, d, generator=generator)).to(dtype).requires_grad_() for _ in range(v)]


def texts(n: int, d: int = 20) -> EmbeddingGraph:
    """More samples than a batch has, two of one text."""
    index = torch.arange(n + 5)
    index[1] = 0
    return EmbeddingGraph(torch.randn(n + 5, d, generator=torch.Generator().manual_seed(9)), index=index)


def classes(n: int) -> ClassGraph:
    labels = torch.arange(n + 5) % 7 - 1
    table = torch.rand(6, 6, generator=torch.Generator().manual_seed(8))
    return ClassGraph(labels, (table + table.T) / 2)


def assert_as_plain(
    make: type[Objective],
    options: dict,
    views: list[Tensor],
    side: dict,
    plain_side: dict,
    atol: float = 5e-6,
):
    """Value and gradients, with those of parameters, as of the table in float64."""
    triton, table = make(**options, chunk_size=16), make(**options, chunk_size=None).double()
    exact = [x.detach().double().requires_grad_() for x in views]
    loss = triton.evaluate(views, Known(**side), False)[0]
    expected = table.evaluate(exact, Known(**plain_side), False)[0]
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=2e-6, atol=atol)
    got = torch.autograd.grad(loss, views + list(triton.parameters()))
    right = torch.autograd.grad(expected, exact + list(table.parameters()))
    for a, b in zip(got, right, strict=True):
        rtol = 8e-3 if a.dtype == torch.bfloat16 else 2e-5
        # Where all gradients are next to nothing, as those of a loss of 1e-30, rounding is not.
        torch.testing.assert_close(a.double(), b, rtol=rtol, atol=max(1e-9, float(b.abs().max()) * rtol))


OBJECTIVES = [
    (NTXent, {"tau": 0.2}, 2),
    (NTXent, {"tau": 0.01}, 2),
    (NTXent, {"tau": 0.3}, 3),
    (InfoNCE, {"tau": 0.1}, 2),
    (CLIP, {}, 2),
]


@pytest.mark.parametrize(("make", "options", "v"), OBJECTIVES)
@pytest.mark.parametrize(("n", "d"), [(70, 20), (5, 130)])
def test_hard_targets(launches: list[str], make: type[Objective], options: dict, v: int, n: int, d: int):
    assert_as_plain(make, options, random_views(n, d, v), {}, {})
    assert launches.count("sums") >= 1
    assert launches.count("gradient") >= 1


def test_labels_negatives_and_ids(launches: list[str]):
    views, labels = random_views(70, 20), torch.arange(70) % 9
    assert_as_plain(SupCon, {"tau": 0.2}, views, {"labels": labels}, {"labels": labels})
    more = torch.randn(33, 20, generator=torch.Generator().manual_seed(3))
    for make, ids in ((InfoNCE, {"ids": labels}), (NTXent, {})):
        side = {"negatives": more, **ids}
        assert_as_plain(make, {}, views, side, side | {"negatives": more.double()})
    assert "gradient" in launches


@pytest.mark.parametrize("graph", [texts, classes])
@pytest.mark.parametrize("v", [1, 2, 3])
@pytest.mark.parametrize(("tau", "tau_s"), [(0.2, 0.1), (0.01, 0.01)])
def test_xclr_from_features(launches: list[str], graph, v: int, tau: float, tau_s: float):
    n = 70 if v < 3 else 35
    similar, ids = graph(n), torch.arange(n).flip(0)
    ids[2] = ids[3]  # the same sample twice in a batch
    side, plain = {"target": similar.tiles(ids)}, {"target": similar.batch(ids).double()}
    options = {"tau": tau, "tau_s": tau_s}
    # A cosine in float32 is 1e-7 from the one in float64; divided by tau_s that is in the target.
    assert_as_plain(XCLR, options, random_views(n, 20, v), side, plain, atol=1e-6 / tau)
    assert launches == ["sums", "gradient"]


def test_xclr_of_a_matrix_uses_the_softmax_alone(launches: list[str]):
    target = torch.rand(40, 40, generator=torch.Generator().manual_seed(4))
    assert_as_plain(XCLR, {}, random_views(40, 20), {"target": target}, {"target": target.double()})
    assert launches == ["sums", "gradient"]


@pytest.mark.parametrize("anchors", [slice(0, 1), slice(10, 40), slice(33, 70)])
@pytest.mark.parametrize("make", [NTXent, InfoNCE, CLIP, XCLR])
def test_a_part_of_the_anchors(launches: list[str], make: type[Objective], anchors: slice):
    views, similar, ids = random_views(70, 20), texts(70), torch.arange(70)
    side, plain = {"anchors": anchors}, {"anchors": anchors}
    if make is XCLR:
        side["target"], plain["target"] = similar.tiles(ids), similar.batch(ids).double()[anchors]
    assert_as_plain(make, {}, views, side, plain)
    assert launches.count("gradient") >= 2


@pytest.mark.parametrize("make", [NTXent, CLIP, XCLR])
def test_half_precision_views_are_computed_in_float32(launches: list[str], make: type[Objective]):
    views, similar, ids = random_views(40, 20, dtype=torch.bfloat16), texts(40), torch.arange(40)
    side, plain = ({"target": similar.tiles(ids)}, {"target": similar.batch(ids).double()})
    given = (side, plain) if make is XCLR else ({}, {})
    with torch.autocast("cpu", torch.bfloat16):
        assert_as_plain(make, {}, views, *given)
    assert "gradient" in launches


BLOCKS = [kernels.Blocks(16, 32, 16, 16), kernels.Blocks(64, 16, 32, 32)]


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
@pytest.mark.parametrize("target", [None, "cosines", "classes"])
@pytest.mark.parametrize("start", [None, 7])
def test_block_sizes_make_no_difference(blocks: kernels.Blocks, target: str | None, start: int | None):
    """Against scores and target written out in float64, both sides' gradients."""
    generator = torch.Generator().manual_seed(5)
    k = 4 * normalize(torch.randn(2, 35, 20, generator=generator), dim=2)
    q = k if start is None else k[:, start : start + 20].contiguous()
    anchors = slice(start or 0, (start or 0) + q.shape[1])
    g = torch.randn(2, q.shape[1], generator=generator)
    graph = None if target is None else (texts(35) if target == "cosines" else classes(35))
    features = None if graph is None else graph.tiles(torch.arange(35)).features
    made = None if features is None else kernels.Target(features, 1 / 0.2)
    x, y = kernels.Side(q, anchors.start), kernels.Side(k, 0)
    if start is None:
        y = x
    lse, target_lse, aimed = kernels.sums(x, y, "itself", made, blocks)

    a, b = q.double().requires_grad_(), k.double().requires_grad_()
    scores = torch.einsum("vid,wjd->viwj", a, a if start is None else b)
    itself = torch.zeros(2, q.shape[1], 2, 35, dtype=torch.bool)
    for view in range(2):
        for i in range(q.shape[1]):
            itself[view, i, view, anchors.start + i] = True
    losses = scores.masked_fill(itself, -torch.inf).flatten(2).logsumexp(2)
    torch.testing.assert_close(lse.double(), losses, rtol=1e-6, atol=1e-6)
    if graph is not None:
        similar = graph.batch(torch.arange(35)).double()[anchors] / 0.2
        similar = similar[None, :, None, :].expand(2, -1, 2, -1).masked_fill(itself, -torch.inf).flatten(2)
        torch.testing.assert_close(target_lse.double(), similar.logsumexp(2), rtol=1e-6, atol=1e-6)
        mean = (similar.softmax(2) * scores.flatten(2)).sum(2)
        torch.testing.assert_close(aimed.double(), mean, rtol=1e-6, atol=2e-6)
        losses = losses - mean
    x = kernels.Side(q, anchors.start, lse, target_lse, g)
    if start is None:
        got = [kernels.gradient(x, x, "itself", made, blocks)]
    else:
        got = [kernels.gradient(*sides, "itself", made, blocks) for sides in ((x, y), (y, x))]
    right = torch.autograd.grad(losses, [a] if start is None else [a, b], g.double())
    for one, other in zip(got, right, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("without", [None, "itself", "sample"])
def test_one_sample_has_no_candidate(without: str | None):
    q = torch.ones(1, 1, 3, requires_grad=True)
    lse, _ = log_sum_exp(q, None, Plan(step=1, without=without))
    assert lse.item() == (3.0 if without is None else -torch.inf)
    (gradient,) = torch.autograd.grad(lse.sum(), q)
    # Either side of its only pair is this vector.
    assert gradient.tolist() == [[[2.0] * 3 if without is None else [0.0] * 3]]


def test_a_vector_of_nothing_and_huge_norms_give_numbers():
    views = random_views(40, 20)
    with torch.no_grad():
        views[0][3] = 0
        views[1] *= 1e3
    assert_as_plain(NTXent, {"tau": 0.01}, views, {}, {}, atol=2e-5)


def test_only_float32_and_only_where_asked(launches: list[str], monkeypatch: pytest.MonkeyPatch):
    z = random_views(20, 8, dtype=torch.float64)
    NTXent(chunk_size=8)(*z)
    monkeypatch.setenv("COUNTERPOINT_TRITON", "0")
    NTXent(chunk_size=8)(*random_views(20, 8))
    assert launches == []
    monkeypatch.setenv("COUNTERPOINT_TRITON", "1")
    NTXent(chunk_size=8)(*random_views(20, 8))
    assert launches == ["sums"]
    assert triton_softmax.log_sum_exp(torch.eye(3)[None], None, Plan(2))[0].shape == (1, 3)


@pytest.mark.parametrize("make", [NTXent, XCLR])
def test_a_second_derivative_is_refused(make: type[Objective]):
    views, known = random_views(20, 8), Known(target=texts(20).tiles(torch.arange(20)))
    loss = make(chunk_size=8).evaluate(views, known if make is XCLR else Known(), False)[0]
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(loss, views, create_graph=True)
