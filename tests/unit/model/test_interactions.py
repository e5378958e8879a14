from __future__ import annotations

from typing import Literal

import pytest
import torch

from diurnal.model.interactions import DotInteraction

Concat = Literal["dense", "all"]


@pytest.mark.parametrize("self_interaction", [False, True])
@pytest.mark.parametrize("concat", ["dense", "all"])
@pytest.mark.parametrize("num_vectors", [2, 5])
def test_it_is_a_loop_over_pairs(num_vectors: int, concat: Concat, self_interaction: bool) -> None:
    interaction = DotInteraction(num_vectors, 3, self_interaction, concat)
    dense, pooled = torch.randn(4, 3), torch.randn(4, num_vectors - 1, 3)
    out = interaction(dense, pooled)
    assert out.shape == (4, interaction.out_dim)
    for row in range(4):
        vectors = [dense[row], *pooled[row]]
        expected = list(torch.cat(vectors if concat == "all" else vectors[:1]))
        for i in range(num_vectors):
            for j in range(i + 1 if self_interaction else i):
                expected.append(vectors[i] @ vectors[j])
        torch.testing.assert_close(out[row], torch.stack(expected))


@pytest.mark.parametrize(("self_interaction", "pairs"), [(False, 351), (True, 378)])
def test_the_width_for_the_26_tables_of_criteo(self_interaction: bool, pairs: int) -> None:
    assert DotInteraction(27, 16, self_interaction, "dense").out_dim == 16 + pairs
    assert DotInteraction(27, 16, self_interaction, "all").out_dim == 27 * 16 + pairs


def test_an_empty_batch_has_no_rows() -> None:
    assert DotInteraction(3, 4)(torch.zeros(0, 4), torch.zeros(0, 2, 4)).shape == (0, 7)
