"""The layout of a packed batch, by hand."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from sacglam.models.packing import additive, attention_mask, pack_causal
from sacglam.models.tokens import TokenisedQuery

#              prompt       actions
QUERIES = [
    TokenisedQuery(np.array([11, 12, 13]), (np.array([1, 2]), np.array([3]))),
    TokenisedQuery(np.array([21]), (np.array([4, 5, 6]),)),
]


def test_the_layout_of_two_ragged_rows() -> None:
    packed = pack_causal(QUERIES)
    assert packed.ids_BS.tolist() == [[11, 12, 13, 1, 2, 3], [21, 4, 5, 6, 0, 0]]
    assert packed.positions_BS.tolist() == [[0, 1, 2, 3, 4, 3], [0, 1, 2, 3, 0, 0]]
    assert packed.end_BS.tolist() == [[6, 6, 6, 5, 5, 6], [4, 4, 4, 4, 5, 6]]
    # Rows that predict a token: in row 0 the prompt's last (for 1 and for 3) and the one at 1 (for 2); in row 1 the
    # prompt's last and those at 4 and 5.
    assert packed.scored_rows_R.tolist() == [2, 3, 6, 7, 8]
    assert packed.token_row_N.tolist() == [0, 0, 1, 2, 3, 4]
    assert packed.row_starts.tolist() == [0, 2, 3, 4, 5, 6]
    assert packed.token_id_N.tolist() == [1, 3, 2, 4, 5, 6]
    assert packed.token_index_BAT.tolist() == [[[0, 2, 6], [1, 6, 6]], [[3, 4, 5], [6, 6, 6]]]
    assert packed.last_row_BA.tolist() == [[4, 5], [9, 0]]
    assert packed.prompt_row_B.tolist() == [2, 6]
    assert packed.read_rows_K.tolist() == [2, 3, 4, 5, 6, 7, 8, 9]
    assert packed.actions_BA.tolist() == [[True, True], [True, False]]
    assert packed.lengths_BA.tolist() == [[2, 1], [3, 1]]


def test_actions_share_the_tokens_with_which_they_begin() -> None:
    actions = ([7, 8, 6], [5], [7, 9], [7])  # in the row: 5 | 7 | 8 6 | 9
    packed = pack_causal([TokenisedQuery(np.array([11, 12]), tuple(map(np.array, actions))), QUERIES[1]])
    assert packed.ids_BS.tolist() == [[11, 12, 5, 7, 8, 6, 9], [21, 4, 5, 6, 0, 0, 0]]
    assert packed.positions_BS.tolist() == [[0, 1, 2, 2, 3, 4, 3], [0, 1, 2, 3, 0, 0, 0]]
    assert packed.end_BS.tolist() == [[7, 7, 3, 7, 6, 6, 7], [4, 4, 4, 4, 5, 6, 7]]
    # The prompt's last position predicts 5 and 7, the one at 3 predicts 8 and 9, the one at 4 predicts 6.
    assert packed.scored_rows_R.tolist() == [1, 3, 4, 7, 8, 9]
    assert packed.token_row_N.tolist() == [0, 0, 1, 1, 2, 3, 4, 5]
    assert packed.token_id_N.tolist() == [5, 7, 8, 9, 6, 4, 5, 6]
    assert packed.token_index_BAT[0].tolist() == [[1, 2, 4], [0, 8, 8], [1, 3, 8], [1, 8, 8]]
    assert packed.last_row_BA.tolist() == [[5, 2, 6, 3], [10, 0, 0, 0]]
    assert packed.lengths_BA.tolist() == [[3, 1, 2, 1], [3, 1, 1, 1]]
    rows = [["".join("x" if seen else "." for seen in row) for row in attention_mask(packed.end_BS)[0, 0].tolist()]]
    assert rows == [["x......", "xx.....", "xxx....", "xx.x...", "xx.xx..", "xx.xxx.", "xx.x..x"]]


def test_without_sharing_actions_keep_their_order() -> None:
    packed = pack_causal(
        [TokenisedQuery(np.array([11]), (np.array([7, 8]), np.array([5]), np.array([7])))], share=False
    )
    assert packed.ids_BS.tolist() == [[11, 7, 8, 5, 7]]
    assert packed.end_BS.tolist() == [[5, 3, 3, 4, 5]]
    assert packed.last_row_BA.tolist() == [[2, 3, 4]]


@given(st.lists(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=1, max_size=6), min_size=1))
def test_each_token_sees_its_own_action_and_no_other(rows: list[list[list[int]]]) -> None:
    queries = [TokenisedQuery(np.array([9, 8]), tuple(map(np.array, actions))) for actions in rows]
    packed = pack_causal(queries)
    mask_BSS = attention_mask(packed.end_BS)[:, 0]
    length = packed.ids_BS.shape[1]
    for b, actions in enumerate(rows):
        prefixes = {tuple(action[: t + 1]) for action in actions for t in range(len(action))}
        assert int((packed.scored_rows_R[packed.token_row_N] // length == b).sum()) == len(prefixes)
        for a, action in enumerate(actions):
            last = int(packed.last_row_BA[b, a]) - b * length
            assert packed.ids_BS[b, mask_BSS[b, last]].tolist() == [9, 8, *action]
            assert packed.positions_BS[b, mask_BSS[b, last]].tolist() == list(range(2 + len(action)))
            tokens_N = packed.token_index_BAT[b, a, : len(action)]
            assert packed.token_id_N[tokens_N].tolist() == action


def test_the_bucket_pads_on_the_right() -> None:
    plain, bucketed = pack_causal(QUERIES), pack_causal(QUERIES, bucket=8)
    assert bucketed.ids_BS.shape == (2, 8)
    assert bucketed.ids_BS[:, :6].tolist() == plain.ids_BS.tolist()
    assert bucketed.end_BS[:, 6:].tolist() == [[7, 8], [7, 8]]
    assert bucketed.prompt_row_B.tolist() == [2, 8]
    assert pack_causal(QUERIES, bucket=6).ids_BS.shape == (2, 6)  # a full bucket gets no other


def test_who_sees_whom() -> None:
    mask = attention_mask(pack_causal(QUERIES).end_BS)
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
        "x.....",
        "xx....",
        "xxx...",
        "xxxx..",
        "....x.",  # padding: only itself
        ".....x",
    ]


def test_the_additive_mask() -> None:
    mask = torch.tensor([[True, False]])
    for dtype in (torch.float32, torch.bfloat16):
        values = additive(mask, dtype)
        assert values.dtype == dtype
        assert values.tolist() == [[0.0, torch.finfo(dtype).min]]
