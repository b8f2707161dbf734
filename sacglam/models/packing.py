"""Packing: all actions of a state in one sequence, decoder-only and encoder-decoder.

A decoder-only model reads `[prompt | a1 | a2 | ...]`: positions restart after the prompt for each action. An
encoder-decoder reads the prompt in its encoder and `[start a1 | start a2 | ...]` in its decoder. A mask hides sibling
actions from each other, so that each is scored as if it alone followed the prompt, while the prompt is computed once.
A state costs P + |A| L tokens instead of |A| (P + L).

Shapes (docs/notation.md): B rows, P prompt length, A actions, T tokens of an action, S packed length, R scored rows,
N action tokens, X actions of all rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sacglam.models.tokens import Ids, TokenisedQuery

Ints = npt.NDArray[np.int64]

PAD_SEGMENT = -1
PROMPT_SEGMENT = 0


@dataclass(frozen=True)
class Packed:
    """Actions in rows of S positions, and where in them scores and hidden states are read.

    `segment` is -1 on padding, 0 on a prompt and k + 1 on action k. `scored_rows` lists the positions whose next-token
    distribution is needed, once each (one serves the first token of all a state's actions), as ascending indices into
    the flattened (B * S) positions. Token n of the actions is predicted by `scored_rows[token_row[n]]`; its id is
    `token_id[n]`. Tokens are in the order of these rows: those of row r are `row_starts[r]` to `row_starts[r + 1]`.
    """

    ids_BS: Tensor
    segment_BS: Tensor
    scored_rows_R: Tensor
    token_row_N: Tensor
    token_id_N: Tensor
    token_index_BAT: Tensor  # into N; N itself (one past the end) on padding
    last_row_BA: Tensor  # flat index of each action's last token; 0 on padding
    prompt_row_B: Tensor  # flat index of the position that has read the prompt and no action
    actions_BA: Tensor  # bool: which actions exist
    lengths_BA: Tensor  # tokens of each action; 1 on padding
    row_starts: Ints  # (R + 1,), for the host

    def to(self, device: torch.device) -> Self:
        """The same batch on `device`."""
        moved: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        moved |= {name: sent(value, device) for name, value in moved.items() if isinstance(value, Tensor)}
        return type(self)(**moved)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on `device`; the host waits for no copy, which it would from memory that is not pinned."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


@dataclass(frozen=True)
class PackedCausal(Packed):
    """For a decoder-only model. Prompts are padded on the left, so that all rows' actions start in the same column."""

    positions_BS: Tensor


@dataclass(frozen=True)
class PackedSeq2Seq(Packed):
    """For an encoder-decoder: `ids_BS` are the decoder's. Each action's segment starts with the start token.

    A state's start tokens have all read the same, so the first of them predicts every action's first token.
    """

    prompt_ids_BP: Tensor  # padded on the right
    prompt_mask_BP: Tensor  # bool: which tokens are the prompt's


@dataclass(frozen=True)
class _Actions:
    """All actions of all rows, concatenated."""

    count_B: Ints
    length_X: Ints
    row_X: Ints
    place_X: Ints  # among its row's actions
    action_N: Ints
    offset_N: Ints  # within its action
    id_N: Ids

    @staticmethod
    def of(queries: Sequence[TokenisedQuery]) -> "_Actions":
        count_B = np.array([len(q.actions) for q in queries])
        length_X = np.array([len(action) for q in queries for action in q.actions])
        row_X, place_X = _positions(count_B)
        action_N, offset_N = _positions(length_X)
        id_N = np.concatenate([action for q in queries for action in q.actions])
        return _Actions(count_B, length_X, row_X, place_X, action_N, offset_N, id_N)

    @property
    def row_N(self) -> Ints:
        return self.row_X[self.action_N]

    def sum_by_row(self, value_X: Ints) -> Ints:
        return np.bincount(self.row_X, weights=value_X, minlength=len(self.count_B)).astype(np.int64)

    def readout(self, flat_N: Ints, prompt_row_B: Ints) -> dict[str, Any]:
        """Where scores and hidden states are read, given the flat index of each action token and of each prompt row."""
        # The row that predicts a token: the one before it, and for an action's first token the prompt's.
        predicting_N = np.where(self.offset_N == 0, prompt_row_B[self.row_N], flat_N - 1)
        scored_rows_R, token_row_N = np.unique(predicting_N, return_inverse=True)
        shape = (len(self.count_B), int(self.count_B.max()))
        token_index = np.full((*shape, int(self.length_X.max())), len(self.id_N))
        order_N = np.argsort(token_row_N, kind="stable")
        index_N = np.argsort(order_N)
        token_index[self.row_N, self.place_X[self.action_N], self.offset_N] = index_N
        last_row = np.zeros(shape, dtype=np.int64)
        last_row[self.row_X, self.place_X] = flat_N[np.cumsum(self.length_X) - 1]
        lengths = np.ones(shape, dtype=np.int64)
        lengths[self.row_X, self.place_X] = self.length_X
        found = {
            "scored_rows_R": scored_rows_R,
            "token_row_N": token_row_N[order_N],
            "token_id_N": self.id_N[order_N],
            "token_index_BAT": token_index,
            "last_row_BA": last_row,
            "prompt_row_B": prompt_row_B,
            "actions_BA": np.arange(shape[1]) < self.count_B[:, None],
            "lengths_BA": lengths,
        }
        row_starts = np.append(0, np.cumsum(np.bincount(token_row_N)))
        return {"row_starts": row_starts, **{name: torch.from_numpy(values) for name, values in found.items()}}


def pack(queries: Sequence[TokenisedQuery], bucket: int = 1) -> PackedCausal:
    """Pack for a decoder-only model; S is rounded up to a multiple of `bucket`, so that few shapes occur."""
    actions = _Actions.of(queries)
    prompt_len_B = np.array([len(q.prompt) for q in queries])
    block_B = actions.sum_by_row(actions.length_X)
    width = int(prompt_len_B.max())
    length = _rounded(width + int(block_B.max()), bucket)

    row_M, column_M = _positions(prompt_len_B)
    column_M += width - prompt_len_B[row_M]
    ids = np.zeros((len(queries), length), dtype=np.int64)
    positions = np.zeros_like(ids)
    segment = np.full_like(ids, PAD_SEGMENT)
    ids[row_M, column_M] = np.concatenate([q.prompt for q in queries])
    positions[row_M, column_M] = column_M - (width - prompt_len_B[row_M])
    segment[row_M, column_M] = PROMPT_SEGMENT

    row_N = actions.row_N
    column_N = width + _positions(block_B)[1]
    ids[row_N, column_N] = actions.id_N
    positions[row_N, column_N] = prompt_len_B[row_N] + actions.offset_N
    segment[row_N, column_N] = 1 + actions.place_X[actions.action_N]
    return PackedCausal(
        ids_BS=torch.from_numpy(ids),
        segment_BS=torch.from_numpy(segment),
        positions_BS=torch.from_numpy(positions),
        **actions.readout(row_N * length + column_N, np.arange(len(queries)) * length + width - 1),
    )


def pack_seq2seq(queries: Sequence[TokenisedQuery], start: int, bucket: int = 1) -> PackedSeq2Seq:
    """Pack for an encoder-decoder whose decoder starts with token `start`; P and S are multiples of `bucket`."""
    actions = _Actions.of(queries)
    prompt_len_B = np.array([len(q.prompt) for q in queries])
    width = _rounded(int(prompt_len_B.max()), bucket)
    prompts = np.zeros((len(queries), width), dtype=np.int64)
    prompt_mask = np.arange(width) < prompt_len_B[:, None]
    prompts[prompt_mask] = np.concatenate([q.prompt for q in queries])

    block_X = 1 + actions.length_X
    length = _rounded(int(actions.sum_by_row(block_X).max()), bucket)
    start_X = np.cumsum(block_X) - block_X  # over all rows,
    first_B = np.cumsum(actions.count_B) - actions.count_B
    start_X -= start_X[first_B][actions.row_X]  # ... and within its own
    ids = np.zeros((len(queries), length), dtype=np.int64)
    segment = np.full_like(ids, PAD_SEGMENT)
    ids[actions.row_X, start_X] = start
    segment[actions.row_X, start_X] = 1 + actions.place_X
    row_N, column_N = actions.row_N, start_X[actions.action_N] + 1 + actions.offset_N
    ids[row_N, column_N] = actions.id_N
    segment[row_N, column_N] = 1 + actions.place_X[actions.action_N]
    return PackedSeq2Seq(
        ids_BS=torch.from_numpy(ids),
        segment_BS=torch.from_numpy(segment),
        prompt_ids_BP=torch.from_numpy(prompts),
        prompt_mask_BP=torch.from_numpy(prompt_mask),
        **actions.readout(row_N * length + column_N, np.arange(len(queries)) * length),
    )


def _rounded(length: int, bucket: int) -> int:
    return -(-length // bucket) * bucket


def _positions(lengths: Ints) -> tuple[Ints, Ints]:
    """For concatenated runs of the given lengths: each element's run, and its place in that run."""
    run = np.repeat(np.arange(len(lengths)), lengths)
    start = np.cumsum(lengths) - lengths
    return run, np.arange(len(run)) - start[run]


def attention_mask(segment_BS: Tensor) -> Tensor:
    """The boolean mask (B, 1, S, S): true where the query position (third axis) may see the key (fourth).

    Causal over the prompt, if there is one; an action sees the prompt and itself causally; padding sees only itself,
    because a row that sees nothing would become NaN.
    """
    length = segment_BS.shape[1]
    causal_SS = torch.ones(length, length, dtype=torch.bool, device=segment_BS.device).tril()
    key_B1S, query_BS1 = segment_BS[:, None, :], segment_BS[:, :, None]
    visible_BSS = (key_B1S == PROMPT_SEGMENT) | ((key_B1S == query_BS1) & (key_B1S != PAD_SEGMENT))
    diagonal_SS = torch.eye(length, dtype=torch.bool, device=segment_BS.device)
    return ((visible_BSS & causal_SS) | diagonal_SS)[:, None]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as numbers that attention adds to its scores: 0 where visible.

    Of a boolean one every layer would make its own, and on a GPU send a number there and wait.
    """
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
