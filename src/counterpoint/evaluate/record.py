"""Results of evaluation: one typed record per number, kept in a JSON file, and statistics over seeds.

A number means little without what decided it. A `Result` therefore carries the name and version of its
protocol and every setting that moves the number.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from counterpoint.files import write_whole


class Result(BaseModel):
    """One number under a named protocol.

    protocol, version: the version grows when the same settings would give another number.
    metric: "accuracy" lies in 0..1, "gap" (a difference of two accuracies) in -1..1.
    value: the number, a share and not a percentage.
    n: samples counted; each sample once.
    settings: everything that decides the number.
    chosen: the names of those settings that the run found itself, such as the L2 strength or whether the
        solver converged. They do not enter `identity`: a later run that finds others replaces this record.

    Raises ValueError for a value out of range, for n below 1 and for settings that JSON cannot hold.

    >>> result = Result(protocol="knn", version=1, value=0.5, n=8, settings={"k": 5, "temperature": 0.07})
    >>> result.metric, result.settings["k"]
    ('accuracy', 5)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    protocol: str = Field(min_length=1)
    version: int = Field(ge=1)
    metric: str = Field(default="accuracy", min_length=1)
    value: float = Field(ge=-1.0, le=1.0, allow_inf_nan=False)
    n: int = Field(ge=1)
    settings: dict[str, JsonValue]
    chosen: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Result:
        if self.metric == "accuracy" and self.value < 0:
            raise ValueError(f"accuracy must lie in 0..1, got {self.value}")
        unknown = [name for name in self.chosen if name not in self.settings]
        if unknown:
            raise ValueError(f"chosen names {unknown[0]!r}, which is not among the settings")
        _ = self.identity  # NaN is no JSON: found here rather than when the file is written
        return self

    @property
    def identity(self) -> str:
        """What was asked, as one line: two results with one identity measure the same thing."""
        asked = {name: value for name, value in self.settings.items() if name not in self.chosen}
        return json.dumps([self.protocol, self.version, self.metric, asked], sort_keys=True, allow_nan=False)


def load_results(path: Path | str) -> list[Result]:
    """The results in that JSON file, in order.

    Raises ValueError that names the file, and the record where one is wrong.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "results.json"
    >>> save_results(path, [Result(protocol="knn", version=1, value=0.25, n=4, settings={"k": 1})])
    >>> load_results(path)[0].value
    0.25
    """
    path = Path(path)
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(records, list):
        raise ValueError(f"{path} must hold a list of results, got {type(records).__name__}")
    results = []
    for position, record in enumerate(records):
        try:
            results.append(Result.model_validate(record))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ValueError(f"{path}: result {position}: {where or 'record'}: {first['msg']}") from error
    return results


def save_results(path: Path | str, results: Iterable[Result]) -> None:
    """Put these results into that JSON file; one with the identity of an older one takes its place.

    Other results already in the file stay. The file is written whole or not at all.

    Raises ValueError when the file is there and does not hold results; it is then left as it is.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "results.json"
    >>> for value in (0.25, 0.75):
    ...     save_results(path, [Result(protocol="knn", version=1, value=value, n=4, settings={"k": 1})])
    >>> [result.value for result in load_results(path)]
    [0.75]
    """
    path = Path(path)
    merged = {result.identity: result for result in (load_results(path) if path.exists() else [])}
    merged.update({result.identity: result for result in results})
    records = [result.model_dump(mode="json") for result in merged.values()]
    text = json.dumps(records, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_whole(path, text.encode("utf-8"))


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (n - 1) over n seeds; `std` is None where n is 1."""

    mean: float
    std: float | None
    n: int


def spread(values: Iterable[float]) -> Spread:
    """Mean, sample standard deviation and count.

    One value has no standard deviation: `std` is None, never 0.

    Raises ValueError for no values and for a value that is not finite.

    >>> spread([0.25, 0.5, 0.75])
    Spread(mean=0.5, std=0.25, n=3)
    >>> spread([0.5]).std is None
    True
    """
    given = [float(value) for value in values]
    if not given:
        raise ValueError("a spread needs at least one value, got none")
    for value in given:
        if not math.isfinite(value):
            raise ValueError(f"a spread needs finite values, got {value}")
    return Spread(statistics.mean(given), statistics.stdev(given) if len(given) > 1 else None, len(given))


@dataclass(frozen=True)
class Difference:
    """Mean of the paired differences a - b and its t interval.

    mean, std, n: over the pairs; std is the sample standard deviation.
    low, high: the two-sided interval at `level`, from Student's t with n - 1 degrees of freedom.
    `std`, `low` and `high` are None where there is one pair: one pair says nothing about chance.
    """

    mean: float
    std: float | None
    n: int
    low: float | None
    high: float | None
    level: float

    @property
    def holds_zero(self) -> bool | None:
        """Whether 0 lies inside the interval; None where there is no interval."""
        if self.low is None or self.high is None:
            return None
        return self.low <= 0.0 <= self.high


def difference(a: Mapping[int, float], b: Mapping[int, float], level: float = 0.95) -> Difference:
    """Compare two recipes seed by seed: the mean of a - b with its t interval.

    a, b: from seed to value. Pairing by seed takes out what the seed does to both.

    Raises ValueError when the seeds differ, for no seeds, for values that are not finite and for a level
    outside 0..1.

    >>> d = difference({0: 0.61, 1: 0.64, 2: 0.62}, {0: 0.58, 1: 0.60, 2: 0.60})
    >>> round(d.mean, 3), round(d.low, 3), round(d.high, 3), d.holds_zero
    (0.03, 0.005, 0.055, False)
    """
    # scipy takes half a second to import, and only comparisons need it.
    from scipy.stats import t  # type: ignore[import-untyped]

    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    for name, here, there in (("a", a, b), ("b", b, a)):
        missing = sorted(set(there) - set(here))
        if missing:
            raise ValueError(
                f"{name} has no value for seed {', '.join(str(seed) for seed in missing)}: "
                "a paired difference needs the same seeds on both sides"
            )
    pairs = spread(a[seed] - b[seed] for seed in sorted(a))
    if pairs.std is None:
        return Difference(pairs.mean, None, pairs.n, None, None, level)
    half = float(t.ppf(0.5 + level / 2, pairs.n - 1)) * pairs.std / math.sqrt(pairs.n)
    return Difference(pairs.mean, pairs.std, pairs.n, pairs.mean - half, pairs.mean + half, level)
