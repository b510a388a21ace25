import pytest
import torch
from pictures import refused
from scipy.optimize import nnls

from counterpoint.data.samples import Labels
from counterpoint.evaluate import Features, neighbours
from counterpoint.evaluate.audit import KINDS, no_doubts, suspect_labels, suspect_pairs
from counterpoint.evaluate.knn import unit_rows
from counterpoint.evaluate.local_machines import local_duals
from counterpoint.objectives.mmcl import MMCL


def cloud(n=300, d=16, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def named(h, **labels):
    return Features(
        h,
        [f"s{i}" for i in range(len(h))],
        {
            name: Labels(torch.as_tensor(y), [f"c{c}" for c in range(max(y) + 1)])
            for name, y in labels.items()
        },
    )


def with_copies(noise=0.05, n=300, copies=20):
    """A cloud whose last rows are near copies of its first ones, half of the cloud ten times as dense."""
    h = cloud(n)
    h[n // 2 :] = h[n // 2] + 0.1 * h[n // 2 :]
    near = h[:copies] + noise * cloud(copies, seed=1)
    return torch.cat([h, near]), {(i, n + i) for i in range(copies)}


def slow_duals(anchor, points, sigma, ridge):
    """One anchor by scipy: 1/2 a'Qa - 2 * 1'a over a >= 0 is a least squares problem in the root of Q."""
    anchor, points = anchor.double(), points.double()
    kernel = lambda x, y: (-(x[:, None] - y[None]).square().sum(2) / sigma).exp()  # noqa: E731
    k = kernel(points, anchor[None])[:, 0]
    q = (
        1
        - k[:, None]
        - k[None]
        + kernel(points, points)
        + ridge * torch.eye(len(points), dtype=torch.float64)
    )
    root = torch.linalg.cholesky(q)
    right = torch.linalg.solve_triangular(root, torch.full((len(points), 1), 2.0).double(), upper=False)
    return torch.from_numpy(nnls(root.T.numpy(), right[:, 0].numpy())[0])


def test_duals_are_those_of_a_slow_solver():
    for seed, (n, m, sigma, ridge) in enumerate(
        [(60, 20, 0.5, 0.1), (80, 33, 2.0, 0.01), (40, 3, 0.05, 1.0)]
    ):
        x = unit_rows(cloud(n, 6, seed))
        x[5] = x[4]  # a repeated row
        near, _ = neighbours(named(x), range(n), m)
        found = local_duals(x, x, near, sigma, ridge)
        slow = torch.stack([slow_duals(x[i], x[near[i]], sigma, ridge) for i in range(n)])
        assert (found - slow).abs().max() < 1e-3 * slow.max()
        assert (slow == 0).any() or m == 3


def test_with_all_others_as_candidates_it_is_the_machine_of_mmcl():
    x = unit_rows(cloud(40, 8))
    near, _ = neighbours(named(x), range(40), 39)
    found = torch.zeros(40, 40).scatter_(1, near, local_duals(x, x, near, 1.5, 0.1))
    expected = MMCL(sigma=1.5, ridge=0.1, tol=1e-6).duals(x, x)
    assert (found - expected).abs().max() < 1e-3 * expected.max()


def test_points_that_do_not_count_change_nothing():
    x = unit_rows(cloud(40, 8))
    near, _ = neighbours(named(x), range(40), 20)
    known = torch.arange(20) < 12
    masked = local_duals(x, x, near, 1.0, 0.1, known.expand(40, 20))
    short = local_duals(x, x, near[:, :12].contiguous(), 1.0, 0.1)
    assert (masked[:, 12:] == 0).all()
    assert torch.allclose(masked[:, :12], short, atol=1e-4)


def test_planted_copies_are_found_where_cosines_lead_into_the_dense_part():
    h, planted = with_copies(noise=0.1)
    pairs = suspect_pairs(named(h), count=20)
    found = set(zip(pairs.a.tolist(), pairs.b.tolist(), strict=True))
    near, cosine = neighbours(named(h), range(len(h)), 1)
    best = cosine[:, 0].argsort(descending=True)[:40].tolist()
    by_cosine = {tuple(sorted((i, int(near[i, 0])))) for i in best}
    assert len(found & planted) >= 18
    assert len(by_cosine & planted) <= 5
    assert (pairs.score.diff() <= 0).all()
    assert (pairs.a < pairs.b).all()


def test_a_score_is_the_smaller_share_of_both():
    h, _ = with_copies()
    pairs = suspect_pairs(named(h), count=10, candidates=12, sigma=0.7)
    x = unit_rows(h)
    near, _ = neighbours(named(h), range(len(h)), 12)
    for a, b, score, ab, ba in zip(
        *(t.tolist() for t in (pairs.a, pairs.b, pairs.score)),
        pairs.alpha_ab.tolist(),
        pairs.alpha_ba.tolist(),
        strict=True,
    ):
        slow = {i: slow_duals(x[i], x[near[i]], 0.7, 0.1) for i in (a, b)}
        forth = float(slow[a][near[a] == b].sum())
        back = float(slow[b][near[b] == a].sum())
        assert abs(ab - forth) < 1e-3 * forth
        assert abs(ba - back) < 1e-3 * back
        assert abs(score - min(forth / float(slow[a].sum()), back / float(slow[b].sum()))) < 1e-3
    weight = suspect_pairs(named(h), count=10, candidates=12, by="weight")
    assert torch.equal(weight.score, torch.minimum(weight.alpha_ab, weight.alpha_ba))


def test_identical_rows_stand_first_and_kinds_follow_labels():
    h, planted = with_copies()
    h[7], h[9] = h[3], 2 * h[3]  # three rows of one direction share their weight
    y = [0] * 300 + [0] * 10 + [1] * 9 + [-1]
    pairs = suspect_pairs(named(h, kind=y), count=25)
    first = list(zip(pairs.a.tolist(), pairs.b.tolist(), strict=True))[:3]
    assert set(first) == {(3, 7), (3, 9), (7, 9)}
    kinds = dict(zip(zip(pairs.a.tolist(), pairs.b.tolist(), strict=True), pairs.kind.tolist(), strict=True))
    assert [KINDS[kinds[pair]] for pair in first] == ["identical"] * 3
    for pair, kind in kinds.items():
        if pair in planted and pair not in first:
            second = y[pair[1]]
            assert KINDS[kind] == {0: "same label", 1: "other label", -1: "unlabelled"}[second]
    assert {"same label", "other label"} <= {KINDS[k] for k in kinds.values()}
    table = pairs.columns(named(h, kind=y))
    assert list(table) == ["a", "b", "score", "cosine", "alpha_ab", "alpha_ba", "label_a", "label_b", "kind"]
    assert {len(values) for values in table.values()} == {25}


def test_a_collapsed_set_gives_pairs_and_no_error():
    pairs = suspect_pairs(named(torch.ones(50, 4)), count=30, candidates=5)
    assert len(pairs) == 30
    assert (pairs.kind == KINDS.index("identical")).all()
    assert torch.isfinite(pairs.score).all()


def test_the_order_of_the_samples_does_not_matter_and_the_run_repeats():
    h, _ = with_copies()
    order = torch.randperm(len(h), generator=torch.Generator().manual_seed(3))
    first, again = suspect_pairs(named(h), count=15), suspect_pairs(named(h), count=15)
    for name in ("a", "b", "score", "alpha_ab"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    moved = suspect_pairs(named(h[order]), count=15)
    pairs = {
        tuple(sorted(order[[a, b]].tolist())) for a, b in zip(moved.a.tolist(), moved.b.tolist(), strict=True)
    }
    assert pairs == set(zip(first.a.tolist(), first.b.tolist(), strict=True))


def labelled(n=200, classes=4, wrong=10):
    centre = 3 * cloud(classes, 8, 5)
    y = torch.arange(n) % classes
    h = centre[y] + cloud(n, 8, 6)
    given = y.clone()
    given[:wrong] = (y[:wrong] + 1) % classes
    return h, y, given


def test_planted_wrong_labels_are_found_with_the_right_class():
    h, y, given = labelled()
    doubts = suspect_labels(named(h, kind=given.tolist()), count=10)
    hit = doubts.row < 10
    assert int(hit.sum()) >= 9
    assert torch.equal(doubts.suggested[hit], y[doubts.row[hit]])
    assert torch.equal(doubts.given, given[doubts.row])
    assert (doubts.score[hit] > 0.5).all()
    assert (given[doubts.own] == doubts.given).all()
    assert (given[doubts.other] != doubts.given).all()
    assert (doubts.own != doubts.row).all()


def test_the_score_of_a_label_compares_two_hulls():
    h, _, given = labelled(n=60)
    doubts = suspect_labels(named(h, kind=given.tolist()), count=5, candidates=6, sigma=1.3)
    x = unit_rows(h)
    for row, score in zip(doubts.row.tolist(), doubts.score.tolist(), strict=True):
        cosine = x @ x[row]
        cosine[row] = -2
        sums = []
        for side in (given == given[row], given != given[row]):
            near = cosine.masked_fill(~side, -2).topk(6).indices
            sums.append(float(slow_duals(x[row], x[near], 1.3, 0.1).sum()))
        assert abs(score - sums[1] / sum(sums)) < 1e-3


def test_rows_without_a_label_and_alone_in_their_class_are_left_out():
    h, _, given = labelled()
    given[20], given[21] = -1, 4
    doubts = suspect_labels(named(h, kind=given.tolist()), count=500)
    assert doubts.alone == 1
    assert len(doubts) == 198
    assert not {20, 21} & set(doubts.row.tolist())


def test_what_is_refused():
    h, _, given = labelled()
    features = named(h, kind=given.tolist())
    with refused("candidates", "199", "200"):
        suspect_pairs(features, candidates=200)
    with refused("count", "0"):
        suspect_pairs(features, count=0)
    with refused("candidates", "2.5"):
        suspect_pairs(features, candidates=2.5)
    with refused("by", "share, weight", "cosine"):
        suspect_pairs(features, by="cosine")
    with refused("ridge", "0"):
        suspect_pairs(features, ridge=0)
    with refused("sigma", "-1"):
        suspect_labels(features, sigma=-1)
    with refused("no labels"):
        suspect_labels(named(h))
    with refused("no labels"):
        suspect_pairs(named(h), column="kind")
    with refused("kin", "kind"):
        suspect_labels(features, column="kin")
    with refused("one class", "c0"):
        suspect_labels(named(h, kind=[0] * 200))
    h[4] = 0
    with refused("zeros", "s4"):
        suspect_pairs(named(h))


@pytest.mark.parametrize("judge", [suspect_pairs, suspect_labels])
@pytest.mark.parametrize("numbers", [{"ridge": 1e-30}, {"ridge": 1e-12}, {"sigma": 1e-7, "ridge": 1e-12}])
def test_numbers_that_cannot_be_solved_with_are_named(judge, numbers):
    h = cloud(60, 3)
    h[30:] = h[:30]
    with refused("ridge", "sigma"):
        judge(named(h, kind=[i % 2 for i in range(60)]), **numbers)


def test_one_sample_is_too_few():
    with refused("at least two", "got 1"):
        suspect_pairs(named(cloud(1)))


def test_all_labels_above_half_are_counted_though_few_are_listed():
    h, y = cloud(200, 4), [i % 2 for i in range(200)]
    few, all_ = (suspect_labels(named(h, kind=y), count=count) for count in (3, 200))
    assert len(few) == 3
    assert few.judged == all_.judged == len(all_) == 200
    assert few.nearer == all_.nearer == int((all_.score > 0.5).sum()) > 50


def test_what_cannot_be_doubted_says_why():
    one = named(cloud(9), kind=[0] * 9)
    assert "one class, 'c0'" in str(no_doubts(one))
    assert "no labelled row" in str(no_doubts(named(cloud(9), kind=[-1] * 9)))
    assert no_doubts(named(cloud(9))) == "there are no labels"
    assert no_doubts(named(cloud(9), kind=[0, 1, 0] * 3)) is None
    with refused("one class"):
        suspect_labels(one)
