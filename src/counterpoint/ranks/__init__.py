"""One batch over several processes: each gives its own samples, and all get the loss of the whole.

Words: a *rank* is one process of a torch.distributed group. It holds the *local* samples; the batch is those
of all ranks, one rank after the other.

    across = AcrossRanks(NTXent(tau=0.5) + 0.75 * QARe())
    loss = across(z0, z1)                                  # (n_local, d) each
    loss.backward()                                        # DistributedDataParallel averages as always

The loss and what is logged are those of one process with the whole batch, the same on every rank, and so are
the gradients of shared weights once they are averaged over the ranks. The gradient at a rank's own views is
the number of ranks times as large, which is what the average takes off again.
"""

from counterpoint.ranks.across import AcrossRanks
from counterpoint.ranks.collectives import gather

__all__ = ["AcrossRanks", "gather"]
