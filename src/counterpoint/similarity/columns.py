"""The labels of a data set that a graph asks for."""

from __future__ import annotations

from counterpoint.data.samples import Labels, Samples


def find_column(samples: Samples, column: str | None, kind: str) -> tuple[str, Labels]:
    """A label column and its name, by default the first; ValueError where there is none or it is empty."""
    if not samples.labels:
        raise ValueError(
            f"a {kind!r} graph needs labels, but data {samples.name!r} has none; it has "
            f"{what_it_has(samples)}"
        )
    labels = samples.column(column)
    name = column if column is not None else next(iter(samples.labels))
    if not bool(labels.known.any()):
        raise ValueError(
            f"a {kind!r} graph needs labels, but none of the {len(labels.values)} samples of data "
            f"{samples.name!r} has one in column {name!r}"
        )
    return name, labels


def what_it_has(samples: Samples) -> str:
    """What is known of the samples, for a message about what is not."""
    columns = f"label columns {', '.join(samples.labels)}" if samples.labels else ""
    captions = "captions" if samples.captions is not None else ""
    return " and ".join(part for part in (columns, captions) if part) or "neither labels nor captions"
