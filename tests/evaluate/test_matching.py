"""Matching against a slow twin, by hand, and where an encoder says nothing."""

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.data.samples import Labels
from counterpoint.evaluate import Features, by_camera, matching

QUICK = settings(deadline=None, max_examples=20)


def side(h, who, names=None, name="made", column="identity") -> Features:
    names = names or [f"id-{i}" for i in range(max(who) + 1)]
    labels = {column: Labels(torch.tensor(who), names)}
    h = torch.as_tensor(h, dtype=torch.float32)
    return Features(h, [f"{name}/{i}" for i in range(len(h))], labels, name)


def found(results) -> dict[tuple[str, ...], float]:
    return {
        (r.metric + (f"@{r.settings['k']}" if r.metric == "recall" else ""), r.settings["direction"]): r.value
        for r in results
    }


def slow(a: Features, b: Features, ks) -> dict[tuple[str, ...], float]:
    """Rankings written out, with every other row that is as near before the own one."""
    who = {}
    for x, features in (("a", a), ("b", b)):
        labels = features.labels["identity"]
        who[x] = [labels.names[v] if v >= 0 else None for v in labels.values.tolist()]
    both = sorted((set(who["a"]) & set(who["b"])) - {None})
    rows = {
        x: [
            (h / h.norm() if h.norm() > 0 else h, name)
            for h, name in zip(f.h.double(), who[x], strict=True)
            if name in both
        ]
        for x, f in (("a", a), ("b", b))
    }
    values = {}
    for x, y in ("ab", "ba"):
        recalls, precisions = {k: [] for k in ks}, []
        for q, name in rows[x]:
            ranking = sorted(((-round(float(q @ h), 9), other == name) for h, other in rows[y]))
            hits = [place for place, (_, own) in enumerate(ranking, 1) if own]
            precisions.append(sum(n / place for n, place in enumerate(hits, 1)) / len(hits))
            for k in ks:
                recalls[k].append(hits[0] <= k)
        for k in ks:
            values[f"recall@{k}", f"{x} to {y}"] = sum(recalls[k]) / len(recalls[k])
        values["mAP", f"{x} to {y}"] = sum(precisions) / len(precisions)
    means = {}
    for x in "ab":
        total = [sum(h for h, name in rows[x] if name == one) for one in both]
        means[x] = torch.stack([h / h.norm() if h.norm() > 0 else h for h in total])
    cosine = means["a"] @ means["b"].T
    best = max(
        (round(float(sum(cosine[i, j] for i, j in enumerate(p))), 7), -sum(i == j for i, j in enumerate(p)))
        for p in permutations(range(len(both)))
    )
    values["assignment", "one to one"] = -best[1] / len(both)
    return values


@QUICK
@given(seed=st.integers(0, 10_000), whole=st.booleans(), tile=st.integers(1, 9))
def test_equals_slow(seed: int, whole: bool, tile: int):
    """Several rows per identity, some on one side only, some without a label; whole numbers make ties."""
    g = torch.Generator().manual_seed(seed)
    sides = []
    for name in "ab":
        who = torch.cat([torch.tensor([0, 1, 2]), torch.randint(-1, 6, (8,), generator=g)])
        h = torch.randint(-1, 2, (11, 3), generator=g).float() if whole else torch.randn(11, 3, generator=g)
        names = [f"id-{i}" for i in range(6)]
        order = torch.randperm(6, generator=g)  # the sides number the same names differently
        names = [names[i] for i in order.tolist()]
        values = torch.where(who >= 0, order.argsort()[who.clamp(min=0)], -1)
        sides.append(side(h, values.tolist(), names, name))
    results = found(matching(*sides, k=(1, 2, 3), tile=tile))
    assert results == pytest.approx(slow(*sides, (1, 2, 3)), abs=1e-12)


def test_by_hand():
    a = side([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0, 1, 2], name="front")
    b = side([[1.0, 0.2], [0.2, 1.0], [1.0, 0.1], [-1.0, -1.0]], [0, 1, 2, 3], name="back")
    results = matching(a, b, k=(1, 3))
    values = found(results)
    # From a: 0 prefers id-2 (0.1 is nearer than 0.2), 1 finds itself, 2 is nearest to 0 and 1, then to 2.
    assert values["recall@1", "a to b"] == pytest.approx(1 / 3)
    assert values["mAP", "a to b"] == pytest.approx((1 / 2 + 1 + 1 / 3) / 3)
    assert values["recall@3", "a to b"] == 1
    first = results[0]
    assert first.n == 3
    assert {key: first.settings[key] for key in ("identities", "a_only", "b_only", "b_n", "a", "b")} == {
        "identities": 3, "a_only": 0, "b_only": 1, "b_n": 3, "a": "front", "b": "back",
    }  # fmt: skip
    assert len({r.identity for r in results}) == len(results) == 7


def test_collapsed_encoder_scores_nothing():
    for row in ([0.3, -0.7, 0.1], [0.0, 0.0, 0.0]):
        h = torch.tensor(row).repeat(700, 1)
        values = found(matching(side(h, range(700)), side(h, range(700))))
        assert set(values.values()) - {values["mAP", "a to b"], values["mAP", "b to a"]} == {0.0}
        assert values["mAP", "a to b"] == pytest.approx(1 / 700)


def test_random_features_are_at_chance():
    g = torch.Generator().manual_seed(0)
    a, b = (side(torch.randn(400, 16, generator=g), range(400)) for _ in range(2))
    values = found(matching(a, b))
    assert values["recall@10", "a to b"] == pytest.approx(10 / 400, abs=0.03)
    assert values["assignment", "one to one"] < 0.03


def test_equal_sides_score_one_and_tiles_change_nothing():
    h = torch.randn(300, 8, generator=torch.Generator().manual_seed(1))
    a = side(h, range(300))
    assert set(found(matching(a, a)).values()) == {1.0}
    noisy = side(h + 0.8 * torch.randn(300, 8, generator=torch.Generator().manual_seed(2)), range(300))
    for tile in (1, 7, 300):
        assert found(matching(a, noisy, tile=tile)) == found(matching(a, noisy))


def test_keys_pair_two_modalities():
    h = torch.eye(12)
    image = Features(h, [f"{i:03}" for i in range(12)], name="images")
    text = Features(h.flip(0), [f"{i:03}" for i in reversed(range(12))], name="captions")
    assert set(found(matching(image, text, column=None)).values()) == {1.0}


def test_assignment_can_be_left_out():
    a = side(torch.eye(3), range(3))
    assert [r.metric for r in matching(a, a, k=1, assignment=False)] == ["recall", "mAP"] * 2


@pytest.mark.parametrize(
    ("b", "options", "words"),
    [
        (side(torch.eye(4), range(4)), {}, "features of a are 3 wide, those of b 4"),
        (side(torch.eye(3), range(3)), {"k": 4}, "between 1 and the 3 rows of the smaller side, got 4"),
        (side(torch.eye(3), range(3)), {"k": 0}, "got 0"),
        (side(torch.eye(3), range(3)), {"k": ()}, "at least one number"),
        (side(torch.eye(3), range(3)), {"k": 1, "tile": 0}, "tile must be at least 1"),
        *((side(torch.eye(3), range(3)), {"k": 1, "tile": t}, "tile must be") for t in (2.5, "x", None)),
        (side(torch.eye(3), range(3)), {"column": "who"}, "no label column 'who'"),
        (side(torch.eye(3), [0, 3, 4]), {"k": 1}, "share 1 identities of column 'identity'"),
        (side(torch.eye(3), range(3), name="b"), {"column": None}, "share 0 keys"),
    ],
)  # fmt: skip
def test_bad_input(b: Features, options, words: str):
    with pytest.raises(ValueError, match=words):
        matching(side(torch.eye(3), range(3), name="a"), b, **options)


def test_keys_that_come_twice_are_refused():
    twice = Features(torch.eye(2), ["x", "x"])
    with pytest.raises(ValueError, match="come twice"):
        matching(twice, twice, column=None, k=1)


def test_sides_by_camera():
    cameras = Labels(torch.tensor([0, 2, 3, 0, -1, 2, 4]), ["a", "b", "c", "d", "e"])
    split = Features(torch.eye(7), list("tuvwxyz"), {"camera": cameras}, "made", captions=list("TUVWXYZ"))
    first, second = by_camera(split)
    assert (list(first.keys), list(second.keys)) == (list("tuwy"), list("vz"))  # nobody saw "b"
    assert (first.name, second.name) == ("made, camera a, c", "made, camera d, e")
    assert torch.equal(second.h, torch.eye(7)[[2, 6]])
    assert second.labels["camera"].values.tolist() == [3, 4]
    assert second.captions == ["V", "Z"]
    first, second = by_camera(split, names=(["e"], ["a"]))
    assert (list(first.keys), list(second.keys)) == (["z"], ["t", "w"])
    with pytest.raises(ValueError, match="no row of 'b'"):
        by_camera(split, names=(["a"], ["b"]))
    for wrong in (([0], [1]), (["a"],), (["a"], ["d"], ["e"]), (["a"], []), "ab", (["a"], "d")):
        with pytest.raises(ValueError, match="names must be two lists of one or more names of cameras"):
            by_camera(split, names=wrong)
    with pytest.raises(ValueError, match="names has 'd' on both sides"):
        by_camera(split, names=(["a", "d"], ["d"]))
    with pytest.raises(ValueError, match="has 1 value"):
        by_camera(Features(torch.eye(2), ["x", "y"], {"camera": Labels(torch.tensor([0, 0]), ["a"])}))


@pytest.mark.parametrize("k", [0, 1.5, "1", True, [1, 2.0], float("nan")], ids=str)
def test_numbers_of_neighbours_are_whole(k: object):
    side = Features(torch.eye(3), keys=["a", "b", "c"], labels={})
    with pytest.raises(ValueError, match="k must be between 1 and the 3 rows of the smaller side"):
        matching(side, side, column=None, k=k)
