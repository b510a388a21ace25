"""Nine runs, three recipes by three seeds, made once."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from made_runs import make_runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    return make_runs(tmp_path_factory.mktemp("runs"))
