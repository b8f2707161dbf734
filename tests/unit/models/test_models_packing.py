"""The layout of a packed batch, by hand."""

from __future__ import annotations

import numpy as np
import torch

from sacglam.models.packing import additive, attention_mask, pack
from sacglam.models.tokens import TokenisedQuery

#              prompt       actions
QUERIES = [
    TokenisedQuery(np.array([11, 12, 13]), (np.array([1, 2]), np.array([3]))),
    TokenisedQuery(np.array([21]), (np.array([4, 5, 6]),)),
]


def test_the_layout_of_two_ragged_rows() -> None:
    packed = pack(QUERIES)
    assert packed.ids_BS.tolist() == [[11, 12, 13, 1, 2, 3], [0, 0, 21, 4, 5, 6]]
    assert packed.positions_BS.tolist() == [[0, 1, 2, 3, 4, 3], [0, 0, 0, 1, 2, 3]]
    assert packed.segment_BS.tolist() == [[0, 0, 0, 1, 1, 2], [-1, -1, 0, 1, 1, 1]]
    # Rows that predict a token: in row 0 the prompt's last (for 1 and for 3) and the one at 1 (for 2); in row 1 the
    # prompt's last and those at 4 and 5.
    assert packed.scored_rows_R.tolist() == [2, 3, 8, 9, 10]
    assert packed.token_row_N.tolist() == [0, 0, 1, 2, 3, 4]
    assert packed.row_starts.tolist() == [0, 2, 3, 4, 5, 6]
    assert packed.token_id_N.tolist() == [1, 3, 2, 4, 5, 6]
    assert packed.token_index_BAT.tolist() == [[[0, 2, 6], [1, 6, 6]], [[3, 4, 5], [6, 6, 6]]]
    assert packed.last_row_BA.tolist() == [[4, 5], [11, 0]]
    assert packed.prompt_row_B.tolist() == [2, 8]
    assert packed.actions_BA.tolist() == [[True, True], [True, False]]
    assert packed.lengths_BA.tolist() == [[2, 1], [3, 1]]


def test_the_bucket_pads_on_the_right() -> None:
    plain, bucketed = pack(QUERIES), pack(QUERIES, bucket=8)
    assert bucketed.ids_BS.shape == (2, 8)
    assert bucketed.ids_BS[:, :6].tolist() == plain.ids_BS.tolist()
    assert bucketed.segment_BS[:, 6:].tolist() == [[-1, -1], [-1, -1]]
    assert bucketed.prompt_row_B.tolist() == [2, 10]
    assert pack(QUERIES, bucket=6).ids_BS.shape == (2, 6)  # a full bucket gets no other


def test_who_sees_whom() -> None:
    mask = attention_mask(pack(QUERIES).segment_BS)
    assert mask.shape == (2, 1, 6, 6)
    assert mask.dtype == torch.bool
    rows = [["".join("x" if seen else "." for seen in row) for row in sheet.tolist()] for sheet in mask[:, 0]]
    assert rows[0] == [
        "x.....",  # the prompt: causal
        "xx....",
        "xxx...",
        "xxxx..",  # the first action: the prompt and itself
        "xxxxx.",
        "xxx..x",  # the second: the prompt and itself, not its sibling
    ]
    assert rows[1] == [
        "x.....",  # padding: only itself
        ".x....",
        "..x...",
        "..xx..",
        "..xxx.",
        "..xxxx",
    ]


def test_the_additive_mask() -> None:
    mask = torch.tensor([[True, False]])
    for dtype in (torch.float32, torch.bfloat16):
        values = additive(mask, dtype)
        assert values.dtype == dtype
        assert values.tolist() == [[0.0, torch.finfo(dtype).min]]
