"""Both splits of a probe are checked and cut to their labelled rows."""

import pytest
import torch
from feature_sets import split

from counterpoint.data.samples import Labels
from counterpoint.evaluate import Features
from counterpoint.evaluate.columns import labelled_rows


def test_unlabelled_rows_are_dropped_and_counted():
    train = split(torch.arange(10.0).view(5, 2), [0, -1, 2, -1, 0], name="train")
    test = split(torch.arange(8.0).view(4, 2), [2, 1, -1, 0], classes=3, name="test")
    rows = labelled_rows(train, test)
    assert rows.train.tolist() == [[0, 1], [4, 5], [8, 9]]
    assert rows.train_labels.tolist() == [0, 2, 0]
    assert rows.test.tolist() == [[0, 1], [2, 3], [6, 7]]
    assert rows.test_labels.tolist() == [2, 1, 0]
    assert rows.classes == 3
    assert rows.settings == {
        "layer": "h",
        "column": "kind",
        "train": "train",
        "test": "test",
        "train_n": 3,
        "train_unlabelled": 2,
        "test_unlabelled": 1,
        "train_classes": 2,
        "test_n_unseen": 1,
    }


def test_the_first_column_of_train_is_meant_in_test_too():
    kinds, sorts = Labels(torch.tensor([0, 1]), ["x", "y"]), Labels(torch.tensor([1, 0]), ["p", "q"])
    train = Features(torch.eye(2), ["a", "b"], {"kind": kinds, "sort": sorts})
    test = Features(torch.eye(2), ["a", "b"], {"sort": sorts, "kind": kinds})
    assert labelled_rows(train, test).settings["column"] == "kind"
    assert labelled_rows(train, test).test_labels.tolist() == [0, 1]
    assert labelled_rows(train, test, "sort").test_labels.tolist() == [1, 0]


EYE = torch.eye(3)


@pytest.mark.parametrize(
    ("train", "test", "column", "says"),
    [
        (split(EYE, [0, 1, 1]), split(EYE[:, :2], [0, 1, 1]), None, "3 wide, test features 2"),
        (
            split(EYE, [0, 1, 1]),
            split(EYE, [0, 1, 2]),
            None,
            r"in train \(2: 0, 1\) than in test \(3: 0, 1, 2\)",
        ),
        (
            split(EYE, [0, 1, 1]),
            split(EYE, [0, 1, 1], column="sort"),
            None,
            "no label column 'kind'; they have sort",
        ),
        (split(EYE, [0, 1, 1]), split(EYE, [0, 1, 1]), "sort", "no label column 'sort'"),
        (
            split(EYE, [0, 1, 1]),
            split(EYE, [-1, -1, -1], 2, "t"),
            None,
            "labels none of the 3 samples of 't'",
        ),
        (
            split(EYE, [-1, -1, -1], 2, "t"),
            split(EYE, [0, 1, 1]),
            None,
            "labels none of the 3 samples of 't'",
        ),
        (split(EYE, [1, 1, -1]), split(EYE, [0, 1, 1]), None, r"one class \('1'\)"),
        (Features(EYE, ["a", "b", "c"]), split(EYE, [0, 1, 1]), None, "have no labels"),
        (
            split(EYE, [0, 1, 1]),
            Features(EYE, ["a", "b", "c"], split(EYE, [0, 1, 1]).labels, layer="z"),
            None,
            "layer 'h', test of layer 'z'",
        ),
    ],
)
def test_splits_that_do_not_fit_are_refused(train: Features, test: Features, column: str | None, says: str):
    with pytest.raises(ValueError, match=says):
        labelled_rows(train, test, column)
