"""A graph looked at, written: one HTML page to choose tau_s by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image

from counterpoint import __version__
from counterpoint.files import write_whole
from counterpoint.report.neighbours import small_pictures
from counterpoint.report.page import template
from counterpoint.report.plots import COLOURS, Series, histogram, line_plot
from counterpoint.similarity import SimilarityGraph
from counterpoint.similarity.look import Look, Pair, Softness

SHARES = (0.9, 0.5, 0.1)
TICKS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
PICTURE_BYTES = 1_600_000


def write_similarity_page(
    graph: SimilarityGraph,
    look: Look,
    out: Path | str,
    *,
    key: Callable[[int], str],
    text: Callable[[int], str] | None = None,
    picture: Callable[[int], Image.Image] | None = None,
    settings: Mapping[str, object] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write what `look_at` saw of a graph as one HTML file that needs nothing beside it; return its path.

    key, text, picture: of a sample by its id, for the pairs that are shown. A picture that is refused with a
        ValueError is left out. settings: what to say of how it was made.

    Raises ValueError for an `out` that is there already unless `overwrite`.

    >>> import tempfile, torch
    >>> from counterpoint.similarity import ClassGraph
    >>> from counterpoint.similarity.look import look_at
    >>> graph = ClassGraph(torch.arange(2), torch.tensor([[1.0, 0.3], [0.3, 1.0]]))
    >>> page = write_similarity_page(graph, look_at(graph), tempfile.mkdtemp() + "/page.html", key=str)
    >>> "effective number of positives" in page.read_text(encoding="utf-8")
    True
    """
    out = Path(out)
    if out.exists() and not overwrite:
        raise ValueError(f"{out} is there already: replace it with --overwrite, or give another --out")
    pairs = [*look.most, *look.least]
    pictures, unread = _pictures(pairs, picture)
    context = {
        "title": f"Similarity: {graph.name}",
        "look": look,
        "colours": COLOURS,
        "reading": reading(look),
        "histogram": Markup(
            histogram(
                look.edges, look.counts, "Similarity of two different samples", "hist",
                "similarity of two different samples",
            )
        ),
        "share_plot": Markup(_curves(look.softness, "share")),
        "equals_plot": Markup(_curves(look.softness, "equals")) if look.equal else None,
        "positives_plot": Markup(_curves(look.softness, "positives")),
        "batches": [{"n": soft.n, "colour": _method(i)} for i, soft in enumerate(look.softness)],
        "rows": [
            {
                "told": f"batch of {soft.n}" + (", with its equals" if equals else ""),
                "taus": [_tau(soft, share, equals) for share in SHARES],
            }
            for equals in ((False, True) if look.equal else (False,))
            for soft in look.softness
        ],
        "shares": [f"{100 * share:.0f} %" for share in SHARES],
        "groups": [
            ("The most similar pairs", [_pair(pair, key, text) for pair in look.most]),
            ("The least similar pairs", [_pair(pair, key, text) for pair in look.least]),
        ],
        "pictures": pictures,
        "unread": unread,
        "settings": {**(settings or {}), "samples": look.samples, "counterpoint": __version__},
    }  # fmt: skip
    # Names of files that are not UTF-8 come as lone surrogates.
    write_whole(out, template("similarity.html.jinja").render(**context).encode("utf-8", "backslashreplace"))
    return out


def reading(look: Look) -> list[str]:
    """What the numbers say about tau_s, in sentences.

    >>> import torch
    >>> from counterpoint.similarity import InstanceGraph
    >>> from counterpoint.similarity.look import look_at
    >>> reading(look_at(InstanceGraph(64), [64]))[-1].startswith("Batches of 64: half of the target")
    True
    """
    lines = [
        f"Two different samples have a similarity of {look.mean:.2f} on average"
        + (f", and {100 * look.equal:.2g} % of the pairs are equal" if look.equal else "")
        + "."
    ]
    return lines + [_of_batch(soft) for soft in look.softness]


def _of_batch(soft: Softness) -> str:
    equals = soft.tau_at(SHARES[1]) is None and soft.share[0] < SHARES[1]
    near, half, far = (soft.tau_at(share, equals) for share in SHARES)
    if half is None:
        side = "less" if soft.share[0] < SHARES[1] else "more"
        return (
            f"Batches of {soft.n}: {side} than half of the target stays on the true positive at every "
            f"tau_s between {soft.tau_s[0]:g} and {soft.tau_s[-1]:g}."
        )
    count = float(_at(soft, half))
    amounts = f"at tau_s = {half:.2g}, where the target amounts to {count:,.1f} equal positives."
    if equals:
        # As with class names: what is not on the other view of the picture is on those of its class.
        most = 100 * soft.share[0]
        line = (
            f"Batches of {soft.n}: at most {most:.2g} % of the target is on the true positive, "
            f"as others are equal to it. Half of it stays on all of these together {amounts}"
        )
        below, above = "hardly anything else counts", "they are lost among the others"
    else:
        line = f"Batches of {soft.n}: half of the target stays on the true positive {amounts}"
        below, above = "it is nearly SimCLR", "the true positive is lost among the others"
    line += f" Below {near:.2g} {below}." if near is not None else ""
    return line + (f" Above {far:.2g} {above}." if far is not None else "")


def _at(soft: Softness, tau: float) -> float:
    return float(np.interp(np.log(tau), np.log(np.array(soft.tau_s)), soft.positives))


def _tau(soft: Softness, share: float, equals: bool) -> str:
    tau = soft.tau_at(share, equals)
    if tau is None:
        first = (soft.equals if equals else soft.share)[0]
        return f"below {soft.tau_s[0]:g}" if first < share else f"above {soft.tau_s[-1]:g}"
    return f"{tau:.3g}"


def _method(place: int) -> int:
    """Colours from the second on: the first is the ink of the page."""
    return (place + 1) % COLOURS


def _curves(softness: Sequence[Softness], what: str) -> str:
    series = [
        Series(_method(i), np.array(soft.tau_s), getattr(soft, what)) for i, soft in enumerate(softness)
    ]
    low, high = softness[0].tau_s[0], softness[0].tau_s[-1]
    ticks = [tick for tick in TICKS if low <= tick <= high] or [low, high]
    label = {
        "share": "Share of the target on the true positive",
        "equals": "Share of the target on the true positive and its equals",
        "positives": "Effective number of positives",
    }[what]
    share = what != "positives"
    return line_plot(series, label, what, "tau_s", percent=share, log=not share, ticks=ticks)


def _pair(pair: Pair, key: Callable[[int], str], text: Callable[[int], str] | None) -> dict[str, Any]:
    return {
        "similarity": f"{pair.similarity:.3f}",
        "sides": [
            {"id": one, "key": key(one), "text": text(one) if text is not None else None}
            for one in (pair.a, pair.b)
        ],
    }


def _pictures(
    pairs: Sequence[Pair], picture: Callable[[int], Image.Image] | None
) -> tuple[dict[int, Markup], list[str]]:
    if picture is None:
        return {}, []
    uses: dict[str, int] = {}
    read: dict[str, Image.Image] = {}
    unread = []
    for one in [side for pair in pairs for side in (pair.a, pair.b)]:
        name = str(one)
        uses[name] = uses.get(name, 0) + 1
        if uses[name] > 1:
            continue
        try:
            read[name] = picture(one)
        except ValueError as error:
            unread.append(str(error))
    small = small_pictures({name: uses[name] for name in read}, read.__getitem__, PICTURE_BYTES)
    return {int(name): Markup(uri) for name, uri in small.items()}, unread
