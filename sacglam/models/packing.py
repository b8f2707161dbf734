"""Packing for decoder-only models: one sequence `[prompt | a1 | a2 | ...]` for each state.

Positions restart after the prompt for each action, and a mask keeps sibling actions from seeing each other, so
that every action is scored as if it alone followed the prompt, while the prompt is computed once. A state costs
P + |A| L tokens instead of |A| (P + L).

Shapes (docs/notation.md): B rows, A actions, T tokens of an action, S packed length, R scored rows, N action tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sacglam.models.tokens import TokenisedQuery

PAD_SEGMENT = -1
PROMPT_SEGMENT = 0


@dataclass(frozen=True)
class Packed:
    """A packed batch. Prompts are padded on the left, so that actions begin in one column for all rows.

    `segment` is -1 on padding, 0 on the prompt and k + 1 on action k. The rows whose next-token distribution is
    needed are listed once each in `scored_rows` (the prompt's last row serves every first token), as indices into
    the flattened (B * S) positions and in ascending order; token n of the actions is predicted by
    `scored_rows[token_row[n]]`, its id is `token_id[n]`.
    """

    ids_BS: Tensor
    positions_BS: Tensor
    segment_BS: Tensor
    scored_rows_R: Tensor
    token_row_N: Tensor
    token_id_N: Tensor
    token_index_BAT: Tensor  # into N; N itself (one past the end) on padding
    last_row_BA: Tensor  # flat index of each action's last token; 0 on padding
    prompt_row_B: Tensor  # flat index of each prompt's last token
    actions_BA: Tensor  # bool: which actions exist
    lengths_BA: Tensor  # tokens of each action; 1 on padding

    @property
    def tokens(self) -> int:
        """B * S: the positions a forward pass computes, padding included."""
        return self.ids_BS.numel()

    def to(self, device: torch.device) -> Packed:
        """The same batch on `device`."""
        if self.ids_BS.device == device:
            return self
        return Packed(**{f.name: getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)})


def pack(queries: Sequence[TokenisedQuery], bucket: int = 1) -> Packed:
    """Pack `queries`; the packed length is rounded up to a multiple of `bucket`, so that few shapes occur."""
    prompt_len_B = np.array([len(q.prompt) for q in queries])
    count_B = np.array([len(q.actions) for q in queries])
    lengths_X = np.array([len(action) for q in queries for action in q.actions])  # X: actions of all rows
    row_X = np.repeat(np.arange(len(queries)), count_B)
    block_B = np.bincount(row_X, weights=lengths_X, minlength=len(queries)).astype(np.int64)
    width = int(prompt_len_B.max())
    length = -(-(width + int(block_B.max())) // bucket) * bucket

    row_M, column_M = _positions(prompt_len_B)
    column_M += width - prompt_len_B[row_M]
    ids = np.zeros((len(queries), length), dtype=np.int64)
    positions = np.zeros_like(ids)
    segment = np.full_like(ids, PAD_SEGMENT)
    ids[row_M, column_M] = np.concatenate([q.prompt for q in queries])
    positions[row_M, column_M] = column_M - (width - prompt_len_B[row_M])
    segment[row_M, column_M] = PROMPT_SEGMENT

    action_N, offset_N = _positions(lengths_X)
    row_N = row_X[action_N]
    column_N = width + _positions(block_B)[1]
    token_id_N = np.concatenate([action for q in queries for action in q.actions])
    ids[row_N, column_N] = token_id_N
    positions[row_N, column_N] = prompt_len_B[row_N] + offset_N
    action_in_row_X = _positions(count_B)[1]
    segment[row_N, column_N] = 1 + action_in_row_X[action_N]

    flat_N = row_N * length + column_N
    prompt_row_B = np.arange(len(queries)) * length + width - 1
    # The row that predicts a token: the one before it, and for an action's first token the prompt's last.
    predicting_N = np.where(offset_N == 0, prompt_row_B[row_N], flat_N - 1)
    scored_rows_R, token_row_N = np.unique(predicting_N, return_inverse=True)

    shape = (len(queries), int(count_B.max()))
    token_index = np.full((*shape, int(lengths_X.max())), len(token_id_N))
    token_index[row_N, action_in_row_X[action_N], offset_N] = np.arange(len(token_id_N))
    last_row = np.zeros(shape, dtype=np.int64)
    last_row[row_X, action_in_row_X] = flat_N[np.cumsum(lengths_X) - 1]
    lengths = np.ones(shape, dtype=np.int64)
    lengths[row_X, action_in_row_X] = lengths_X
    return Packed(
        ids_BS=torch.from_numpy(ids),
        positions_BS=torch.from_numpy(positions),
        segment_BS=torch.from_numpy(segment),
        scored_rows_R=torch.from_numpy(scored_rows_R),
        token_row_N=torch.from_numpy(token_row_N),
        token_id_N=torch.from_numpy(token_id_N),
        token_index_BAT=torch.from_numpy(token_index),
        last_row_BA=torch.from_numpy(last_row),
        prompt_row_B=torch.from_numpy(prompt_row_B),
        actions_BA=torch.from_numpy(np.arange(shape[1]) < count_B[:, None]),
        lengths_BA=torch.from_numpy(lengths),
    )


def _positions(lengths: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For runs of the given lengths laid end to end: each element's run, and its place in that run."""
    run = np.repeat(np.arange(len(lengths)), lengths)
    start = np.cumsum(lengths) - lengths
    return run, np.arange(len(run)) - start[run]


def attention_mask(segment_BS: Tensor) -> Tensor:
    """The boolean mask (B, 1, S, S): true where the query position (third axis) may see the key (fourth).

    Causal over the prompt; an action sees the prompt and itself causally; padding sees only itself, because a row
    that sees nothing would turn to NaN.
    """
    length = segment_BS.shape[1]
    causal_SS = torch.ones(length, length, dtype=torch.bool, device=segment_BS.device).tril()
    key_B1S, query_BS1 = segment_BS[:, None, :], segment_BS[:, :, None]
    visible_BSS = (key_B1S == PROMPT_SEGMENT) | ((key_B1S == query_BS1) & (key_B1S != PAD_SEGMENT))
    diagonal_SS = torch.eye(length, dtype=torch.bool, device=segment_BS.device)
    return ((visible_BSS & causal_SS) | diagonal_SS)[:, None]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as numbers to add to the scores, which is what eager attention does with it: 0 where visible."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
