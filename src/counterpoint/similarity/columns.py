"""The labels of a data set that a graph asks for."""

from __future__ import annotations

from counterpoint.data.samples import Labels, Samples


