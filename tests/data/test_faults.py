"""How faults are told."""

import warnings

import pytest
from pictures import refused

from counterpoint.data.faults import check_on_error, existing_file, existing_folder, settle


def test_on_error_is_stop_or_skip():
    check_on_error("stop")
    check_on_error("skip")
    with refused("on_error='ignore'", "'stop' or 'skip'"):
        check_on_error("ignore")


def test_no_fault_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settle([], 3, "here", "stop")


def test_faults_stop_or_are_counted():
    with refused("here: 2 of 3 samples", "the first: row 1 is bad", "on_error='skip'"):
        settle(["row 1 is bad", "row 2 is bad"], 3, "here", "stop")
    with pytest.warns(UserWarning, match="here: 1 of 3 samples cannot be used; the first: row 1 is bad"):
        settle(["row 1 is bad"], 3, "here", "skip")
    with refused("here: 2 of 2 samples", "none is left"):
        settle(["row 1 is bad", "row 2 is bad"], 2, "here", "skip")


def test_paths(tmp_path):
    file = tmp_path / "a"
    file.write_text("")
    assert existing_file(file) == file
    assert existing_folder(tmp_path) == tmp_path
    with refused("is a file, not a folder"):
        existing_folder(file)
    with refused("is a folder, not a file"):
        existing_file(tmp_path)
    with refused("is not there"):
        existing_file(tmp_path / "b")
    with refused("is not there"):
        existing_folder(tmp_path / "b")
