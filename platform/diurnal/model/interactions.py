"""How the vectors of one row meet: pairwise dot products (Naumov et al., "Deep Learning Recommendation Model for
Personalization and Recommendation Systems", 2019, section 2.1.3).

Shapes: B rows, V vectors, D width of a vector, P pairs.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn


class DotInteraction(nn.Module):
    """Dot products of all pairs of vectors, beside the dense vector or all vectors.

    Pairs (i, j) are ordered by i, then j, with j < i, or j <= i where `self_interaction` counts a vector's product
    with itself. Vector 0 is the dense one.
    """

    def __init__(
        self, num_vectors: int, dim: int, self_interaction: bool = False, concat: Literal["dense", "all"] = "dense"
    ) -> None:
        super().__init__()
        self.concat = concat
        rows, columns = torch.tril_indices(num_vectors, num_vectors, 0 if self_interaction else -1, device="cpu")
        self.register_buffer("pairs", rows * num_vectors + columns, persistent=False)
        self.out_dim: int = len(rows) + dim * (num_vectors if concat == "all" else 1)

    def forward(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        """(B, D) of the bottom MLP and (B, V - 1, D) of the tables to (B, out_dim): vectors first, then products."""
        vectors_BVD = torch.cat([dense.unsqueeze(1), pooled], dim=1)
        products_BVV = torch.bmm(vectors_BVD, vectors_BVD.transpose(1, 2))
        products_BP = products_BVV.flatten(1).index_select(1, self.get_buffer("pairs"))
        kept = vectors_BVD.flatten(1) if self.concat == "all" else dense
        return torch.cat([kept, products_BP], dim=1)
