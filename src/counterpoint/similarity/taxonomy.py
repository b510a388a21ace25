"""How alike classes are by their places in a tree or DAG of kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.names import hint
from counterpoint.similarity.classes import ClassGraph
from counterpoint.similarity.taxonomy_files import read_edges

Measure = Literal["path", "lch", "wup"]
VIRTUAL = "*root*"
FAR = 2**14  # above any distance, and twice it still fits int16 arithmetic done in int32


class Taxonomy:
    """A rooted tree or DAG of kinds: what each kind is a kind of.

    parents: for each node its parents; a node that is only named as a parent has none.
    virtual_root: where there are several roots, put one more node above them all. Without it they are
        refused: classes under different roots would have no path between them.
    depth: the longest way down from the root, in edges, which Leacock-Chodorow needs; by default that of
        these nodes. Give it where they are a part of a larger taxonomy (19 for the nouns of WordNet 3.0).

    Distances count edges on the way up to a shared ancestor and down again. A node may have several parents;
    then the shortest way counts.

    Raises ValueError on no nodes, a cycle (which is printed), or several roots.

    >>> kinds = Taxonomy({"cat": ["animal"], "dog": ["animal"], "bus": ["thing"], "animal": ["thing"]})
    >>> kinds.similarity(["cat", "dog", "bus"], "path")
    tensor([[1.0000, 0.3333, 0.2500],
            [0.3333, 1.0000, 0.2500],
            [0.2500, 0.2500, 1.0000]])
    """

    def __init__(
        self, parents: Mapping[str, Iterable[str]], virtual_root: bool = False, depth: int | None = None
    ) -> None:
        up = {node: tuple(dict.fromkeys(above)) for node, above in parents.items()}
        for node in [node for above in up.values() for node in above if node not in up]:
            up[node] = ()
        if not up:
            raise ValueError("the taxonomy has no nodes")
        try:
            order = list(TopologicalSorter(up).static_order())
        except CycleError as error:
            cycle = error.args[1]
            raise ValueError(f"the taxonomy has a cycle: {' -> '.join(map(str, cycle))}") from None
        roots = [node for node in order if not up[node]]
        if len(roots) > 1:
            if not virtual_root:
                shown = ", ".join(map(repr, roots[:5])) + (", ..." if len(roots) > 5 else "")
                raise ValueError(
                    f"the taxonomy has {len(roots)} roots: {shown}; join them under one node, or say "
                    "virtual_root: true"
                )
            if VIRTUAL in up:
                raise ValueError(f"the taxonomy has a node {VIRTUAL!r}, the name of the virtual root")
            up |= dict.fromkeys(roots, (VIRTUAL,)) | {VIRTUAL: ()}
            order = [VIRTUAL, *order]
        self.parents = {node: up[node] for node in order}
        longest = _depths(self.parents, max)
        self.depth = max(longest.values()) if depth is None else depth
        if self.depth < max(longest.values()):
            raise ValueError(f"depth is {depth}, but a path of these nodes is {max(longest.values())} long")

    def __len__(self) -> int:
        return len(self.parents)

    def ancestors(self, node: str) -> dict[str, int]:
        """The node and all above it, each with the number of edges up to it.

        >>> Taxonomy({"cat": ["animal"], "animal": ["thing"]}).ancestors("cat")
        {'cat': 0, 'animal': 1, 'thing': 2}
        """
        found, frontier = {node: 0}, [node]
        while frontier:
            above = dict.fromkeys(parent for one in frontier for parent in self.parents[one])
            frontier = [parent for parent in above if parent not in found]
            found |= {parent: found_at for parent in frontier for found_at in [max(found.values()) + 1]}
        return found

    def similarity(
        self, nodes: Sequence[str], measure: Measure = "path", order: Mapping[str, str] | None = None
    ) -> Tensor:
        """How alike these nodes are: `(n, n)` float32, symmetric, in [0, 1], 1 on the diagonal.

        measure: with d the distance of two nodes,
            "path": 1 / (1 + d);
            "lch": Leacock-Chodorow, -log((1 + d) / (2 depth)), divided by its value log(2 depth) at d = 0,
                and 0 where that is negative;
            "wup": Wu-Palmer, 2 p / (a + b + 2 p): p is one more than the longest way from the deepest shared
                ancestor to the root, a and b are the distances to that ancestor.
        order: a name for each node, to choose between deepest shared ancestors by; by default the nodes.

        These are nltk's definitions, and the numbers are nltk's. Deepest is meant by the shortest way to the
        root, as there. Memory grows with the square of the number of nodes above those of the list.

        Raises ValueError on a node that is not in the taxonomy, with the nearest, and an unknown measure.
        """
        if measure not in ("path", "lch", "wup"):
            raise ValueError(f"unknown measure {measure!r}: {hint(measure, ['path', 'lch', 'wup'])}")
        for node in nodes:
            if node not in self.parents:
                raise ValueError(f"the taxonomy has no node {node!r}: {hint(node, self.parents)}")
        wanted = list(dict.fromkeys(nodes))
        up = {node: self.ancestors(node) for node in wanted}
        kept = list(dict.fromkeys(above for one in up.values() for above in one))
        place = {node: row for row, node in enumerate(kept)}
        distance, above = self._distances(wanted, kept, place)
        here = [place[node] for node in wanted]
        d = distance[:, here]
        if measure == "path":
            value = 1 / (1 + d.astype(np.float64))
        elif measure == "lch":
            most = np.log(2.0 * max(self.depth, 1))
            value = np.maximum(0.0, 1 - np.log1p(d) / most)
        else:
            value = self._wu_palmer(kept, here, distance, above, order or {})
        np.fill_diagonal(value, 1.0)
        index = [wanted.index(node) for node in nodes] if len(wanted) < len(nodes) else range(len(nodes))
        return torch.from_numpy(value[np.ix_(list(index), list(index))].astype(np.float32))

    def _distances(
        self, wanted: Sequence[str], kept: Sequence[str], place: Mapping[str, int]
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Distances `(wanted, kept)`, and which of kept are above which of wanted."""
        rise = np.full((len(kept), len(kept)), FAR, dtype=np.int16)
        for node in kept:
            for other, far in self.ancestors(node).items():
                rise[place[node], place[other]] = far
        distance = np.empty((len(wanted), len(kept)), dtype=np.int32)
        above = np.zeros((len(wanted), len(kept)), dtype=bool)
        for row, node in enumerate(wanted):
            mine = np.flatnonzero(rise[place[node]] < FAR)
            above[row, mine] = True
            # The way goes up to one of the node's own ancestors, and down from there.
            distance[row] = (rise[:, mine].astype(np.int32) + rise[place[node], mine]).min(axis=1)
        return distance, above

    def _wu_palmer(
        self,
        kept: Sequence[str],
        here: Sequence[int],
        distance: NDArray[np.int32],
        above: NDArray[np.bool_],
        order: Mapping[str, str],
    ) -> NDArray[np.float64]:
        shortest, longest = _depths(self.parents, min), _depths(self.parents, max)
        down = np.array([shortest[node] for node in kept])
        p = np.array([longest[node] for node in kept]) + 1.0
        # The first in this order is the one nltk takes among equally deep ones.
        rank = np.argsort(np.argsort([order.get(node, node) for node in kept], kind="stable"), kind="stable")
        score = down * (len(kept) + 1) + (len(kept) - rank)
        value = np.empty((len(here), len(here)))
        for row, mine in enumerate(here):
            shared = np.where(above[row] & above, score, -1)
            best = shared.argmax(axis=1)
            # One of the two that is itself a deepest shared ancestor comes first.
            for other, theirs in enumerate(here):
                level = down[best[other]]
                for one in (mine, theirs):
                    if shared[other, one] >= 0 and down[one] == level:
                        best[other] = one
                        break
            both = distance[row, best] + distance[np.arange(len(here)), best]
            value[row] = 2 * p[best] / (both + 2 * p[best])
        return np.maximum(value, value.T)


class TaxonomyGraph(ClassGraph):
    """Samples are as alike as their classes' places in a taxonomy.

    labels: `(n,)` integers, -1 for an unlabelled sample, as in `ClassGraph`.
    classes: the node of each class, in label order.
    taxonomy, measure: see `Taxonomy.similarity`.

    >>> kinds = Taxonomy({"cat": ["animal"], "dog": ["animal"], "bus": ["thing"], "animal": ["thing"]})
    >>> graph = TaxonomyGraph(torch.tensor([0, 1, 2, 0]), ["cat", "dog", "bus"], kinds)
    >>> graph.batch(torch.arange(4))[0]
    tensor([1.0000, 0.3333, 0.2500, 1.0000])
    """

    def __init__(
        self,
        labels: Tensor,
        classes: Sequence[str],
        taxonomy: Taxonomy,
        measure: Measure = "path",
        *,
        order: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> None:
        title = f"taxonomy ({measure})" if name is None else name
        super().__init__(labels, taxonomy.similarity(classes, measure, order), title)
        self.classes, self.measure = list(classes), measure


def read_taxonomy(path: str | Path, virtual_root: bool = False, depth: int | None = None) -> Taxonomy:
    """A taxonomy from a file.

    path: `.csv`, `.tsv` or `.parquet` with the columns `child` and `parent`, one edge a row; or `.yaml`,
        `.yml` or `.json` with names nested in names: `{animal: {cat: , dog: }}`, or a list at the end,
        `{animal: [cat, dog]}`. A name that comes twice has two parents.

    Raises ValueError by file and row, and as `Taxonomy` does.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(f"{folder}/kinds.yaml").write_text("thing: {animal: [cat, dog], bus: }")
    ...     kinds = read_taxonomy(f"{folder}/kinds.yaml")
    >>> len(kinds), kinds.parents["cat"]
    (5, ('animal',))
    """
    parents = read_edges(Path(path).expanduser())
    try:
        return Taxonomy(parents, virtual_root, depth)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def place_classes(names: Sequence[str], nodes: Iterable[str], where: str) -> list[str]:
    """The node of each class name: that name, or one that differs in case, underscores and spaces alone.

    Raises ValueError that names all classes without a node (ten at most), each with what is near.

    >>> place_classes(["Polar_bear"], ["polar bear", "bear"], "the taxonomy")
    ['polar bear']
    >>> place_classes(["polr bear"], ["polar bear", "bear"], "the taxonomy")
    Traceback (most recent call last):
    ValueError: the taxonomy has no class 'polr bear': there are polar bear, bear; did you mean 'polar bear'?
    """
    known = list(nodes)
    exact = set(known)
    plain = {_plain(node): node for node in reversed(known)}
    placed = [name if name in exact else plain.get(_plain(name)) for name in names]
    missing = [name for name, node in zip(names, placed, strict=True) if node is None]
    if missing:
        said = [f"{name!r}: {hint(name, known)}" for name in missing[:10]]
        more = f"; and {len(missing) - 10} more" if len(missing) > 10 else ""
        raise ValueError(f"{where} has no class {', and no '.join(said)}{more}")
    return [node for node in placed if node is not None]


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").lower().split())


def _depths(parents: Mapping[str, Sequence[str]], choose: Callable[[Iterable[int]], int]) -> dict[str, int]:
    """Edges to the root by the longest or the shortest way; `parents` has every node after its parents."""
    depth: dict[str, int] = {}
    for node, above in parents.items():
        depth[node] = 1 + choose(depth[one] for one in above) if above else 0
    return depth
