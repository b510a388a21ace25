"""Contrastive objectives: tensors in, scalar out.

Each is a function (`ntxent(z0, z1, tau=0.5)`) and a module (`NTXent(tau=0.5)(z0, z1)`) with the same value.
Modules add up: `NTXent() + 0.5 * Hinge()`.
"""

from counterpoint.objectives.base import Objective, WeightedSum
from counterpoint.objectives.clip import CLIP, clip
from counterpoint.objectives.fenchel_young import fenchel_young
from counterpoint.objectives.hinge import Hinge, hinge
from counterpoint.objectives.infonce import InfoNCE, infonce
from counterpoint.objectives.mmcl import MMCL, mmcl
from counterpoint.objectives.ntlogistic import NTLogistic, ntlogistic
from counterpoint.objectives.ntxent import NTXent, ntxent
from counterpoint.objectives.qare import QARe, qare
from counterpoint.objectives.simplex import entmax15, sparsemax
from counterpoint.objectives.sparseclr import SparseCLR, sparseclr
from counterpoint.objectives.structured_assignment import StructuredAssignment, structured_assignment
from counterpoint.objectives.supcon import SupCon, supcon
from counterpoint.objectives.triplet import Triplet, triplet
from counterpoint.objectives.xclr import XCLR, xclr

OBJECTIVES: dict[str, type[Objective]] = {
    "infonce": InfoNCE,
    "ntxent": NTXent,
    "clip": CLIP,
    "supcon": SupCon,
    "xclr": XCLR,
    "triplet": Triplet,
    "hinge": Hinge,
    "mmcl": MMCL,
    "sparseclr": SparseCLR,
    "structured_assignment": StructuredAssignment,
    "ntlogistic": NTLogistic,
    "qare": QARe,
}
"""Every objective by the name recipes use."""

__all__ = [
    "CLIP",
    "MMCL",
    "OBJECTIVES",
    "XCLR",
    "Hinge",
    "InfoNCE",
    "NTLogistic",
    "NTXent",
    "Objective",
    "QARe",
    "SparseCLR",
    "StructuredAssignment",
    "SupCon",
    "Triplet",
    "WeightedSum",
    "clip",
    "entmax15",
    "fenchel_young",
    "hinge",
    "infonce",
    "mmcl",
    "ntlogistic",
    "ntxent",
    "qare",
    "sparseclr",
    "sparsemax",
    "structured_assignment",
    "supcon",
    "triplet",
    "xclr",
]
