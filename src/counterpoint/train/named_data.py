"""Data named on the command line: a data section as YAML, or that of a recipe."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from counterpoint.data import SOURCES, STREAMS, Samples
from counterpoint.train.recipe import Data, load_recipe, override, parse_data


def named_data(words: str, overrides: Sequence[str] = ()) -> Data:
    """The data section that some words stand for.

    words: the keys of the section, such as "source: table, path: pictures.csv", or the name or file of a
        recipe. overrides: changes as `key=value`, such as `data.limit=100`.

    Raises ValueError where there is no such recipe, and for a section that is not right.

    >>> named_data("source: shapes, count: 8").source
    'shapes'
    """
    if ": " not in words and not words.lstrip().startswith("{"):
        return load_recipe(words, overrides).data
    flow = words.strip() if words.lstrip().startswith("{") else f"{{{words}}}"
    try:
        override({}, [f"data={flow}"])
    except ValueError:
        raise ValueError(
            f"--data {words!r} is not valid YAML: a value with braces, brackets or colons needs quotes, "
            "such as path: 'data/{00..99}.tar'"
        ) from None
    plain = override({}, [f"data={flow}", *overrides])
    if others := [key for key in plain if key != "data"]:
        raise ValueError(f"{others[0]!r} is no part of --data: changes to it are such as data.limit=100")
    given = plain["data"]
    if isinstance(given, dict) and given.get("source") not in STREAMS:
        # Of two splits one is opened: whether they are apart does not matter.
        given = {"holdout": 0.5, **given}
    return parse_data(given, "--data")


def open_split(data: Data, split: str) -> Samples:
    """All samples of a split, "train" or "test": keys, texts and labels, the pictures not yet read.

    `data.holdout` and `data.limit` choose among them later, and have no effect here.
    """
    if split not in ("train", "test"):
        raise ValueError(f"--split must be train or test, got {split!r}")
    if data.streamed:
        raise ValueError(
            f"data.source={data.source!r} is a stream without a list: name the same shards as source: shards"
        )
    source = SOURCES[data.source]
    takes_on_error = {"on_error": data.on_error} if "on_error" in inspect.signature(source).parameters else {}
    return source(split=data.train if split == "train" else data.test, **data.arguments, **takes_on_error)
