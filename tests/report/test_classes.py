from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from made_runs import GROUPS, NAMES, target
from scipy.stats import spearmanr

from counterpoint.data.samples import Labels
from counterpoint.evaluate.features import Features
from counterpoint.report.classes import (
    Target,
    agreement,
    arrange,
    centre,
    class_similarity,
    closest_pairs,
    off_diagonal,
    read_targets,
)
from counterpoint.report.runs import Method, Run


def method(*folders: Path) -> Method:
    return Method(0, "m", tuple(Run(f, "m", i, {}, (), {}) for i, f in enumerate(folders)))


def save(folder: Path, similarity: np.ndarray, names: tuple[str, ...], name: str = "captions") -> Path:
    folder.mkdir(parents=True)
    np.savez(folder / "graph.npz", similarity=similarity, names=np.array(names), column="object", name=name)
    return folder


def test_centre_gives_cosines_about_the_mean() -> None:
    vectors = np.random.default_rng(0).normal(3, 1, (6, 4))
    about = vectors - vectors.mean(0)
    about /= np.linalg.norm(about, axis=1, keepdims=True)
    expected = (about @ about.T * 5 + 1) / 6
    np.testing.assert_allclose(centre(vectors @ vectors.T), expected, atol=1e-12)


def test_centre_is_blind_to_offset_and_scale() -> None:
    similarity = target().astype(np.float64)
    np.testing.assert_allclose(centre(0.3 * similarity + 0.4), centre(similarity), atol=1e-12)


def test_class_on_the_mean_has_no_direction() -> None:
    vectors = np.array([[1.0, 0], [-1, 0], [0, 0]])
    made = centre(vectors @ vectors.T)
    assert np.isnan(made[2]).all()
    assert np.isfinite(made[:2, :2]).all()


def test_arrange_puts_alike_classes_together() -> None:
    shuffle = np.random.default_rng(3).permutation(10)
    made = centre(target().astype(np.float64)[np.ix_(shuffle, shuffle)])
    places = [next(g for g, group in enumerate(GROUPS) if shuffle[i] in group) for i in arrange(made)]
    assert sum(a != b for a, b in pairwise(places)) == 2
    assert arrange(centre(np.eye(4))) == [0, 1, 2, 3]


def test_class_similarity_is_the_mean_cosine_of_pairs() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(4, size=60)
    h = torch.from_numpy(rng.normal(labels[:, None] == np.arange(5), 0.7)).float()
    names = ("a", "b", "c", "d")
    features = Features(h, [str(i) for i in range(60)], {"object": Labels(torch.from_numpy(labels), names)})
    order = ("c", "a", "d", "b")
    made = class_similarity(features, Target("t", "object", order, np.eye(4), True))
    unit = torch.nn.functional.normalize(h.double(), dim=1).numpy()
    rows = {name: unit[labels == place] for place, name in enumerate(names)}
    mean = [[np.mean([u @ v for u in rows[x] for v in rows[y]]) for y in order] for x in order]
    np.testing.assert_allclose(made, centre(np.array(mean)), atol=1e-9)


def test_class_without_samples_cannot_be_compared() -> None:
    features = Features(
        torch.eye(3), list("xyz"), {"object": Labels(torch.tensor([0, 1, 1]), ("a", "b", "c"))}
    )
    wanted = Target("t", "object", ("a", "b", "c"), np.eye(3), True)
    assert class_similarity(features, wanted) is None
    assert class_similarity(features, Target("t", "colour", ("a", "b", "c"), np.eye(3), True)) is None


def test_agreement_correlates_the_pairs(tmp_path: Path) -> None:
    names = NAMES["object"]
    (wanted,) = read_targets([method(save(tmp_path / "0", target(), names))])
    noise = np.random.default_rng(0).normal(0, 0.1, (2, 10, 10))
    seeds = [wanted.similarity + (n + n.T) / 2 for n in noise]
    found = agreement(3, dict(enumerate(seeds)), wanted)
    expected = [spearmanr(off_diagonal(m), off_diagonal(wanted.similarity)).statistic for m in seeds]
    assert found.ranks == pytest.approx(dict(enumerate(expected)))
    np.testing.assert_allclose(found.similarity, np.mean(seeds, axis=0))
    assert agreement(0, {7: wanted.similarity}, wanted).linears == pytest.approx({7: 1.0})


def test_flat_target_has_no_correlation(tmp_path: Path) -> None:
    (wanted,) = read_targets(
        [method(save(tmp_path / "0", np.eye(5, dtype=np.float32), tuple("abcde"), "labels"))]
    )
    assert wanted.flat
    assert agreement(0, {0: centre(np.diag(np.arange(1.0, 6)))}, wanted).ranks == {}


def test_targets_of_one_name_are_averaged_over_seeds(tmp_path: Path) -> None:
    names = NAMES["object"]
    low, high = target() - 0.1 * (1 - np.eye(10)), target() + 0.1 * (1 - np.eye(10))
    both = method(save(tmp_path / "0", low, names), save(tmp_path / "1", high, names))
    (wanted,) = read_targets([both])
    order = [names.index(name) for name in wanted.names]
    np.testing.assert_allclose(
        wanted.similarity, centre(target().astype(np.float64))[np.ix_(order, order)], atol=1e-6
    )


def test_closest_pairs_come_first(tmp_path: Path) -> None:
    (wanted,) = read_targets([method(save(tmp_path / "0", target(), NAMES["object"]))])
    values = [wanted.similarity[i, j] for i, j in closest_pairs(wanted, 5)]
    assert values == sorted(off_diagonal(wanted.similarity), reverse=True)[:5]


@pytest.mark.parametrize(
    ("similarity", "said"),
    [
        (np.eye(2), r"similarity must be \(3, 3\)"),
        (np.full((3, 3), np.nan), "that of 'a' and 'a' is nan: it needs two"),
    ],
)
def test_broken_graph_is_refused_by_path(tmp_path: Path, similarity: np.ndarray, said: str) -> None:
    with pytest.raises(ValueError, match=rf"graph\.npz: .*{said}"):
        read_targets([method(save(tmp_path / "0", similarity, ("a", "b", "c")))])


def test_file_that_is_no_graph_is_refused_by_path(tmp_path: Path) -> None:
    folder = save(tmp_path / "0", np.eye(3), ("a", "b", "c"))
    (folder / "graph.npz").write_bytes(b"PK nothing")
    with pytest.raises(ValueError, match=r"graph\.npz is not a graph file"):
        read_targets([method(folder)])
