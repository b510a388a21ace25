"""The recipe: everything that decides a run, typed, read from YAML, overridden by `key=value`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from counterpoint.arguments import Named, arguments, choose, problems
from counterpoint.data import SOURCES, STREAMS
from counterpoint.data.views import ViewSpec, view_spec
from counterpoint.names import hint
from counterpoint.objectives import OBJECTIVES, Objective
from counterpoint.similarity import GRAPHS, Similarity
from counterpoint.train.schedule import Schedules, check_schedule
from counterpoint.train.sections import Evaluate, Model, Momentum, Optim, Section, Train


class Data(Named):
    """Where samples come from; the other keys are the arguments of the source."""

    source: str = Field(description="the kind of data: " + ", ".join([*SOURCES, *STREAMS]))
    train: str | None = Field(
        "train", min_length=1, description="the split that is trained on; null where there are no splits"
    )
    test: str | None = Field("test", min_length=1, description="the split that is evaluated")
    holdout: float = Field(
        0.0, ge=0, lt=1, description="share of train kept back and evaluated instead of test"
    )
    limit: int | None = Field(None, ge=1, description="use only so many samples of train")
    limit_by: Literal["first", "random"] = Field(
        "first", description="which they are: the first, or a draw that is the same in every run"
    )
    label: str | None = Field(
        None, description="label column of objectives and graphs; the first if not given"
    )
    on_error: Literal["stop", "skip"] = Field("stop", description="what a broken picture does to the run")

    @model_validator(mode="after")
    def _check(self) -> Data:
        source = choose("data source", self.source, {**SOURCES, **STREAMS})
        try:
            self._fill(arguments(source, self.arguments, "data", leave_out=("split", "on_error")))
        except ValueError as error:
            block = f"to change the source, give the whole block: data={{source: {self.source}, ...}}"
            raise ValueError(f"{error} (arguments of source {self.source!r}; {block})") from None
        if self.streamed:
            for name, value in (("holdout", self.holdout), ("limit", self.limit), ("label", self.label)):
                if value:
                    raise ValueError(f"data.{name}={value} needs a list of samples; {self.source} has none")
        elif self.train == self.test and not self.holdout:
            raise ValueError(
                f"data.train and data.test are both {self.train!r}: give data.holdout, the share of samples "
                "that is kept back for evaluation, such as data.holdout=0.1"
            )
        elif None in (self.train, self.test) and not self.holdout:
            which, other = ("train", "test") if self.train is None else ("test", "train")
            raise ValueError(
                f"data.{which} is null, all the data, and data.{other}={getattr(self, other)!r} is a part "
                f"of it: give data.{which} a split too, or data.holdout, the share that is kept back"
            )
        return self

    @property
    def streamed(self) -> bool:
        """Whether it is read as a stream, without a list of its samples."""
        return self.source in STREAMS


class Views(Named):
    """How views are drawn: a preset, and any field of it changed."""

    preset: str = Field("simclr", description="the set of random transforms to start from")

    @model_validator(mode="after")
    def _check(self) -> Views:
        self._fill(view_spec(self.preset, **self.arguments).model_dump(mode="json"))
        return self

    @property
    def spec(self) -> ViewSpec:
        """The transforms, resolved."""
        return view_spec(self.preset, **self.arguments)


class ObjectiveTerm(Named):
    """One term of the loss; the other keys are the objective's own arguments."""

    name: str = Field(description="the objective: " + ", ".join(OBJECTIVES))
    weight: float = Field(1.0, description="factor of this term in the sum")
    schedule: dict[str, dict[int, int | float]] = Field(
        default={},
        description="arguments that change: for each, epochs counted from 1 and the value from then on",
    )

    @model_validator(mode="after")
    def _check(self) -> ObjectiveTerm:
        kind = choose("objective", self.name, OBJECTIVES)
        self._fill(arguments(kind, self.arguments, "objective"))
        check_schedule(kind, self.arguments, self.schedule)
        self.build()
        return self

    def build(self) -> Objective:
        """The objective with its arguments."""
        made: Objective = OBJECTIVES[self.name](**self.arguments)
        return made


class Recipe(Section):
    """All that decides a run."""

    name: str = Field(
        min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", description="what the run is called"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="of weights, shuffling and augmentation")
    data: Data
    views: Views = Views()
    model: Model = Model()
    objective: tuple[ObjectiveTerm, ...] = Field(min_length=1, description="one term, or several that add up")
    similarity: Similarity | None = None
    momentum: Momentum | None = None
    optim: Optim = Optim()
    train: Train = Train()
    evaluate: Evaluate = Evaluate()
    evaluate_on: Data | None = Field(None, description="another data set that is measured instead of data")
    expect: dict[str, Any] = Field(
        default={}, description="published figures and their source; not used by the run"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_term(cls, given: Any) -> Any:
        """A single term may stand without the list, and a bare name for a term with its defaults."""
        if not isinstance(given, dict):
            return given
        term = given.get("objective")
        term = {"name": term} if isinstance(term, str) else term
        return {**given, "objective": [term]} if isinstance(term, dict) else given

    @model_validator(mode="after")
    def _targets_have_a_source(self) -> Recipe:
        if "target" in self.build_objective().requires and self.similarity is None:
            needing = next(term.name for term in self.objective if "target" in term.build().requires)
            raise ValueError(
                f"objective {needing!r} needs soft targets: give similarity.graph, one of {', '.join(GRAPHS)}"
            )
        return self

    @model_validator(mode="after")
    def _momentum_fits(self) -> Recipe:
        if self.momentum is None:
            return self
        if self.views.spec.count < 2:
            raise ValueError(
                "momentum needs views.count of at least 2: the first view is the trained encoder's"
            )
        if self.train.micro_batch is not None:
            raise ValueError("momentum and train.micro_batch exclude each other: give one of them")
        if self.momentum.queue is not None and "negatives" not in self.build_objective().accepts:
            takes = [name for name, kind in OBJECTIVES.items() if "negatives" in kind.accepts]
            raise ValueError(
                f"momentum.queue needs an objective that takes further candidates, {', '.join(takes)}; "
                f"got {', '.join(term.name for term in self.objective)}"
            )
        return self

    @model_validator(mode="after")
    def _shards_fit(self) -> Recipe:
        if self.train.strategy != "fsdp":
            return self
        others = {
            "momentum, whose encoder follows whole weights": self.momentum is not None,
            "optim.name='lars', which needs the norms of whole weights": self.optim.name == "lars",
            "a learnable temperature": any(True for _ in self.build_objective().parameters()),
        }
        for what in (what for what, asked in others.items() if asked):
            raise ValueError(f"train.strategy='fsdp' does not go with {what}: leave it at 'auto'")
        return self

    def build_objective(self) -> Objective:
        """The objective, or the weighted sum of the terms."""
        first, *others = [
            term.build() if term.weight == 1 else term.weight * term.build() for term in self.objective
        ]
        total = first
        for other in others:
            total = total + other
        return total

    def schedules(self, objective: Objective) -> Schedules:
        """What changes the arguments of the objective that `build_objective` made, epoch by epoch."""
        terms = [(OBJECTIVES[term.name], term.arguments, term.schedule) for term in self.objective]
        return Schedules(objective, terms)

    def resolved(self) -> dict[str, Any]:
        """The recipe as plain data, with every default written out."""
        plain: dict[str, Any] = self.model_dump(mode="json")
        for term, written in zip(self.objective, plain["objective"], strict=True):
            # Keys of JSON are texts; epochs are numbers in YAML.
            written["schedule"] = {name: dict(steps) for name, steps in term.schedule.items()}
        if len(plain["objective"]) == 1:
            plain["objective"] = plain["objective"][0]
        return plain

    def to_yaml(self) -> str:
        """The resolved recipe as YAML; reading it again gives an equal recipe."""
        return yaml.dump(self.resolved(), Dumper=_ShortLists, sort_keys=False, allow_unicode=True, width=110)


class _ShortLists(yaml.SafeDumper):
    """Lists of plain values on one line, all else one key a line."""


_ShortLists.add_representer(
    list,
    lambda dumper, values: dumper.represent_sequence(
        "tag:yaml.org,2002:seq", values, flow_style=not any(isinstance(value, dict) for value in values)
    ),
)


def parse_recipe(given: Any, where: str = "recipe") -> Recipe:
    """Check plain data and make a recipe of it; ValueError says what is wrong, where, and what is allowed."""
    if not isinstance(given, dict):
        raise ValueError(f"{where}: a recipe is a mapping of keys to values, got {type(given).__name__}")
    try:
        return Recipe.model_validate(given)
    except ValidationError as error:
        raise ValueError(f"{where}: " + "; ".join(problems(error, Recipe))) from None


def parse_data(given: Any, where: str) -> Data:
    """Check a data section that stands by itself; ValueError as `parse_recipe`."""
    if not isinstance(given, dict):
        raise ValueError(f"{where}: data is a mapping of keys to values, got {given!r}")
    try:
        return Data.model_validate(given)
    except ValidationError as error:
        raise ValueError(f"{where}: " + "; ".join(problems(error, Data))) from None


def override(plain: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Plain data with `key=value` words applied; keys are dotted, values are YAML.

    >>> override({"optim": {"lr": 0.1}}, ["optim.lr=0.3", "train.epochs=2"])
    {'optim': {'lr': 0.3}, 'train': {'epochs': 2}}
    """
    changed: dict[str, Any] = yaml.safe_load(yaml.safe_dump(plain))
    for word in words:
        key, sign, text = word.partition("=")
        if not sign or not key:
            raise ValueError(f"override {word!r} is not of the form key=value")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ValueError(f"override {word!r}: the value is not valid YAML") from None
        _assign(changed, key, value)
    return changed


def _assign(plain: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    place: Any = plain
    for part in parents:
        if isinstance(place, list) and part.isdigit() and int(part) < len(place):
            place = place[int(part)]
            continue
        if not isinstance(place, dict):
            raise ValueError(f"override {key!r}: {part!r} is inside a value that has no keys")
        if place.get(part) is None:
            place[part] = {}
        place = place[part]
    if not isinstance(place, dict):
        raise ValueError(f"override {key!r}: {last!r} is inside a value that has no keys")
    place[last] = value


def recipes_folder() -> Path:
    """The folder of the recipes that come with the package."""
    packaged = Path(__file__).parents[1] / "recipes"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "recipes"


def recipe_names() -> list[str]:
    """The names of the recipes that come with the package."""
    folder = recipes_folder()
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml"))


def find_recipes(name: str | os.PathLike[str]) -> list[Path]:
    """The recipe files that a name stands for: a file, a packaged recipe, or a packaged group of them."""
    path = Path(name)
    if path.suffix in {".yaml", ".yml"}:
        if not path.is_file():
            raise ValueError(f"there is no recipe file {path}")
        return [path]
    folder = recipes_folder()
    if (single := folder / f"{name}.yaml").is_file():
        return [single]
    # By stem, so that simclr stands before simclr-qare: the first is the baseline of a comparison.
    if group := sorted((folder / str(name)).glob("*.yaml"), key=lambda file: file.stem):
        return group
    allowed = dict.fromkeys([*recipe_names(), *(n.rpartition("/")[0] for n in recipe_names())])
    known = hint(str(name), [n for n in allowed if n])
    raise ValueError(f"unknown recipe {str(name)!r}: {known}; or give a path that ends in .yaml")


def load_recipe(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """Read one recipe from a YAML file or by its packaged name, and apply `key=value` overrides."""
    files = find_recipes(path)
    if len(files) > 1:
        raise ValueError(
            f"{path} is a group of {len(files)} recipes; name one: {', '.join(f.stem for f in files)}"
        )
    return read_recipe(files[0], overrides)


def read_recipe(file: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read the recipe in that file."""
    try:
        plain = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"recipe {file} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"recipe {file} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(plain, dict):
        raise ValueError(f"{file}: a recipe is a mapping of keys to values, got {type(plain).__name__}")
    return parse_recipe(override(plain, overrides), where=str(file))
