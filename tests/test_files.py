import os

import pytest

from counterpoint.files import write_whole


def test_a_reader_never_sees_half_a_file(tmp_path):
    path = tmp_path / "a.json"
    write_whole(path, b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    write_whole(path, b"old")
    with pytest.raises(TypeError):
        write_whole(path, "text is not bytes")
    assert path.read_bytes() == b"old"
