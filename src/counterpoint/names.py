"""What to say of a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

FEW = 20


def hint(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the names there are, and the nearest of them.

    Of more than 20 names only the nearest are told, where one is near.

    >>> hint("tset", ["train", "test"])
    "there are train, test; did you mean 'test'?"
    >>> hint("clas 7", [f"class {i}" for i in range(30)])
    "did you mean 'class 7'?"
    >>> hint("x", [])
    'there are none'
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    meant = f"did you mean {close[0]!r}?" if close else ""
    if len(names) > FEW and close:
        return meant
    shown = ", ".join(names[:FEW]) + (f" and {len(names) - FEW} more" if len(names) > FEW else "")
    return f"there are {shown or 'none'}" + (f"; {meant}" if meant else "")
