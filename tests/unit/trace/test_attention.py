"""What the kernels of attention allocate for a mask, on the meta device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from brim.trace.attention import interception  # noqa: E402
from brim.trace.watch import StorageWatch, watching  # noqa: E402

HEADS, WIDTH = 2, 16


@pytest.mark.parametrize(("length", "masks"), [(1120, [1120]), (1123, [1123, 1128])])
def test_a_boolean_mask_becomes_one_of_the_query_s_type_and_a_padded_one_where_its_rows_are_not_aligned(
    length: int, masks: list[int]
) -> None:
    """Nothing else is as large: torch 2.11 inverts no mask. An H200 took 7.66 MB for Gemma 4's 1,120 patches."""
    query = torch.empty(1, HEADS, length, WIDTH, device="meta")
    mask = torch.empty(1, 1, length, length, dtype=torch.bool, device="meta")
    watch = StorageWatch([query, mask])
    with torch.no_grad(), watching(watch), interception():
        torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)
    typed = sum(length * row * 4 for row in masks)
    assert typed <= watch.peak_bytes <= typed + HEADS * length * WIDTH * 4 + 3 * 512
