"""One start of four processes, for all tests here."""

import re
import socket
from pathlib import Path
from typing import Any

import pytest
from rank_cases import run_all

GUIDE = Path(__file__).parents[2] / "docs" / "ranks.md"


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of four processes found: of `ranks[0]` and `ranks[1]`, and of all, see `rank_cases.work`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    block = re.search(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    return run_all(tmp_path_factory.mktemp("ranks"), port, block[1])
