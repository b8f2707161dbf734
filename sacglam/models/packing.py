"""Packing: all actions of a state in one sequence, decoder-only and encoder-decoder.

A decoder-only model reads `[prompt | actions]`, the actions as a tree: those that begin with the same tokens share
them, as `Go to red cat` and `Go to blue door` share `Go to`. Positions rewind where a branch begins. An
encoder-decoder reads the prompt in its encoder and `[start a1 | start a2 | ...]` in its decoder. A mask hides branches
from each other, so that each action is scored as if it alone followed the prompt, while the prompt is computed once.
A state costs at most P + |A| L tokens instead of |A| (P + L).

Shapes (docs/method/notation.md): B rows, P prompt length, A actions, T tokens of an action, S packed length, R scored
rows, N action tokens, shared ones counted once, X actions of all rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sacglam.models.tokens import Ids, TokenisedQuery

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Actions in rows of S positions, and where in them scores and hidden states are read.

    A position is visible to those from itself to `end`, exclusive: a prompt's to the whole row, an action's to its
    continuations, padding's only to itself. `scored_rows` lists the positions whose next-token distribution is needed,
    once each (one serves the first token of all a state's actions), as ascending indices into the flattened (B * S)
    positions. Token n of the actions is predicted by `scored_rows[token_row[n]]`; its id is `token_id[n]`. Tokens are
    in the order of these rows: those of row r are `row_starts[r]` to `row_starts[r + 1]`. After `read_for`,
    several states may share a row: `prompt_row_B` and all that has an axis A are then per state, the rest per row.
    """

    ids_BS: Tensor
    end_BS: Tensor
    scored_rows_R: Tensor
    token_row_N: Tensor
    token_id_N: Tensor
    token_index_BAT: Tensor  # into N; N itself (one past the end) on padding
    last_row_BA: Tensor  # flat index of each action's last token; 0 on padding
    prompt_row_B: Tensor  # flat index of the position that has read the prompt and no action
    read_rows_K: Tensor  # all of these positions, once each, ascending
    actions_BA: Tensor  # bool: which actions exist
    lengths_BA: Tensor  # tokens of each action; 1 on padding
    row_starts: Ints  # (R + 1,), for the host
    positions_BS: Tensor | None = None  # of a decoder-only model
    prompt_ids_BP: Tensor | None = None  # the input of an encoder, padded on the right
    prompt_mask_BP: Tensor | None = None  # bool: which of these tokens are the prompt's
    frozen_BSH: Tensor | None = None  # what the first adapted layer reads, where this is kept

    def to(self, device: torch.device) -> "Packed":
        """The same batch on `device`."""
        moved: dict[str, Any] = {n: sent(value, device) for n, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **moved)

    def read_for(self, row_B: Tensor) -> "Packed":
        """The same rows, read for B states, several of which may share a row."""
        names = ("token_index_BAT", "last_row_BA", "prompt_row_B", "actions_BA", "lengths_BA")
        return replace(self, **{name: getattr(self, name)[row_B] for name in names})


def distinct(queries: Sequence[TokenisedQuery]) -> tuple[list[TokenisedQuery], Tensor]:
    """The distinct queries, and the index of each query among them (B,)."""
    places: dict[TokenisedQuery, int] = {}
    place_B = [places.setdefault(query, len(places)) for query in queries]
    return list(places), torch.tensor(place_B)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor copied to `device`; pinned for a GPU, so that the host does not wait for the copy."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


@dataclass(frozen=True)
class _Tokens:
    """The action tokens of all rows, row by row. Shared ones appear once, each before those that continue it."""

    row_N: Ints
    column_N: Ints  # place among the row's action tokens
    depth_N: Ints  # tokens of the action before it
    parent_N: Ints  # the token before it; meaningless at depth 0
    end_N: Ints  # the columns from here to the end, exclusive, continue it
    id_N: Ids
    place_N: Ints  # of its action (the first, if shared) among the row's actions in this order
    index_XT: Ints  # the tokens of each action, in the order of `queries`; N on padding
    length_X: Ints
    count_B: Ints  # actions of each row
    by_row_B: Ints  # tokens of each row

    @staticmethod
    def of(queries: Sequence[TokenisedQuery], share: bool) -> "_Tokens":
        """With `share`, a row's actions are sorted, and share the tokens of common beginnings."""
        count_B = np.array([len(q.actions) for q in queries])
        length_X = np.array([len(action) for q in queries for action in q.actions])
        row_X, place_X = _positions(count_B)
        id_XT = np.full((len(length_X), int(length_X.max())), -1)
        column_T = np.arange(id_XT.shape[1])
        id_XT[column_T < length_X[:, None]] = np.concatenate([action for q in queries for action in q.actions])

        order_X, shared_X = np.arange(len(length_X)), np.zeros_like(length_X)
        if share:
            order_X = np.lexsort((*id_XT.T[::-1], row_X))
            same_XT = (id_XT[order_X[1:]] == id_XT[order_X[:-1]]) & (row_X[1:] == row_X[:-1])[:, None]
            shared_X[1:] = np.minimum(np.cumprod(same_XT, axis=1).sum(axis=1), length_X[order_X[1:]])
        # Rows and counts of actions are the same in either order.
        new_XT = (column_T >= shared_X[:, None]) & (column_T < length_X[order_X, None])
        total, first_X = int(new_XT.sum()), np.cumsum(new_XT.sum(axis=1)) - new_XT.sum(axis=1)
        # A shared token is the newest one of its depth; it ends where an action shares fewer tokens than its depth.
        index_XT = np.where(new_XT, np.cumsum(new_XT).reshape(new_XT.shape) - 1, -1)
        index_XT = np.maximum.accumulate(index_XT, axis=0)
        until_XT = np.where(column_T >= shared_X[:, None], first_X[:, None], total)
        until_XT = np.vstack([until_XT[1:], np.full_like(until_XT[:1], total)])
        end_XT = np.minimum.accumulate(until_XT[::-1], axis=0)[::-1]
        action_N, depth_N = np.nonzero(new_XT)
        by_query_XT = np.empty_like(index_XT)
        by_query_XT[order_X] = index_XT
        by_row_B = np.bincount(row_X[action_N], minlength=len(queries))
        row_N, column_N = _positions(by_row_B)
        return _Tokens(
            row_N=row_N,
            column_N=column_N,
            depth_N=depth_N,
            parent_N=index_XT[action_N, depth_N - 1],
            end_N=end_XT[new_XT] - np.arange(total) + column_N,
            id_N=id_XT[order_X][new_XT],
            place_N=place_X[action_N],
            index_XT=np.where(column_T < length_X[:, None], by_query_XT, total),
            length_X=length_X,
            count_B=count_B,
            by_row_B=by_row_B,
        )

    def packed(
        self, offset_N: Ints, before: tuple[Ints, Ints, Ints, Ints], prompt_column_B: Ints, length: int
    ) -> Packed:
        """Rows of `length` positions with each action token at its column plus `offset`.

        `before` holds the row, column, id and end of all other tokens. The position at `prompt_column` has read the
        prompt and no action.
        """
        start_B = np.arange(len(self.count_B)) * length  # flat index of each row
        ids = np.zeros((len(start_B), length), dtype=np.int64)
        end = np.tile(np.arange(1, length + 1), (len(start_B), 1))
        row_M, column_M, id_M, end_M = before
        ids[row_M, column_M], end[row_M, column_M] = id_M, end_M
        column_N = self.column_N + offset_N
        ids[self.row_N, column_N], end[self.row_N, column_N] = self.id_N, self.end_N + offset_N
        flat_N, prompt_row_B = start_B[self.row_N] + column_N, start_B + prompt_column_B

        predicting_N = np.where(self.depth_N == 0, prompt_row_B[self.row_N], flat_N[self.parent_N])
        scored_rows_R, token_row_N = np.unique(predicting_N, return_inverse=True)
        row_X, place_X = _positions(self.count_B)
        shape = (len(self.count_B), int(self.count_B.max()))
        order_N = np.argsort(token_row_N, kind="stable")
        token_index = np.full((*shape, self.index_XT.shape[1]), len(self.id_N))
        token_index[row_X, place_X] = np.append(np.argsort(order_N), len(self.id_N))[self.index_XT]
        last_row = np.zeros(shape, dtype=np.int64)
        last_row[row_X, place_X] = flat_N[self.index_XT[np.arange(len(row_X)), self.length_X - 1]]
        lengths = np.ones(shape, dtype=np.int64)
        lengths[row_X, place_X] = self.length_X
        read = np.concatenate([scored_rows_R, last_row[row_X, place_X], prompt_row_B])
        return Packed(
            ids_BS=torch.from_numpy(ids),
            end_BS=torch.from_numpy(end),
            scored_rows_R=torch.from_numpy(scored_rows_R),
            token_row_N=torch.from_numpy(token_row_N[order_N]),
            token_id_N=torch.from_numpy(self.id_N[order_N]),
            token_index_BAT=torch.from_numpy(token_index),
            last_row_BA=torch.from_numpy(last_row),
            prompt_row_B=torch.from_numpy(prompt_row_B),
            read_rows_K=torch.from_numpy(np.unique(read)),
            actions_BA=torch.from_numpy(np.arange(shape[1]) < self.count_B[:, None]),
            lengths_BA=torch.from_numpy(lengths),
            row_starts=np.append(0, np.cumsum(np.bincount(token_row_N))),
        )


def pack_causal(queries: Sequence[TokenisedQuery], bucket: int = 1, share: bool = True) -> Packed:
    """Rows of `[prompt | actions | padding]` for a decoder-only model; S is rounded up to a multiple of `bucket`.

    Without `share`, actions share no tokens.
    """
    tokens = _Tokens.of(queries, share)
    prompt_len_B = np.array([len(q.prompt) for q in queries])
    used_B = prompt_len_B + tokens.by_row_B
    row_M, column_M = _positions(prompt_len_B)
    prompts = (row_M, column_M, np.concatenate([q.prompt for q in queries]), used_B[row_M])
    offset_N = prompt_len_B[tokens.row_N]
    packed = tokens.packed(offset_N, prompts, prompt_len_B - 1, _rounded(int(used_B.max()), bucket))
    positions = np.zeros(packed.ids_BS.shape, dtype=np.int64)
    positions[row_M, column_M] = column_M
    positions[tokens.row_N, tokens.column_N + offset_N] = tokens.depth_N + offset_N
    return replace(packed, positions_BS=torch.from_numpy(positions))


def pack_seq2seq(queries: Sequence[TokenisedQuery], start: int, bucket: int = 1) -> Packed:
    """Rows of `[start a1 | start a2 | ... | padding]` for a decoder, and of prompts for its encoder.

    P and S are multiples of `bucket`. Actions share no tokens, because this decoder sees only relative positions
    in the row. A state's start tokens have all read the same, so the first one predicts every action's first token.
    """
    tokens = _Tokens.of(queries, share=False)
    prompt_len_B = np.array([len(q.prompt) for q in queries])
    prompt_mask = np.arange(_rounded(int(prompt_len_B.max()), bucket)) < prompt_len_B[:, None]
    prompts = np.zeros(prompt_mask.shape, dtype=np.int64)
    prompts[prompt_mask] = np.concatenate([q.prompt for q in queries])

    offset_N, first = 1 + tokens.place_N, tokens.depth_N == 0
    row_X, column_X = tokens.row_N[first], (tokens.column_N + offset_N)[first] - 1
    starts = (row_X, column_X, np.full_like(row_X, start), (tokens.end_N + offset_N)[first])
    length = _rounded(int((tokens.by_row_B + tokens.count_B).max()), bucket)
    packed = tokens.packed(offset_N, starts, np.zeros_like(prompt_len_B), length)
    return replace(packed, prompt_ids_BP=torch.from_numpy(prompts), prompt_mask_BP=torch.from_numpy(prompt_mask))


def _rounded(length: int, bucket: int) -> int:
    return -(-length // bucket) * bucket


def _positions(lengths: Ints) -> tuple[Ints, Ints]:
    """For concatenated runs of the given lengths: each element's run, and its place in that run."""
    run = np.repeat(np.arange(len(lengths)), lengths)
    start = np.cumsum(lengths) - lengths
    return run, np.arange(len(run)) - start[run]


def attention_mask(end_BS: Tensor) -> Tensor:
    """The boolean mask (B, 1, S, S): true where the query position (third axis) may see the key (fourth)."""
    column_S = torch.arange(end_BS.shape[1], device=end_BS.device)
    return ((column_S <= column_S[:, None]) & (column_S[:, None] < end_BS[:, None]))[:, None]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as numbers that attention adds to its scores: 0 where visible.

    Given a boolean mask, every layer would make its own and, on a GPU, send a number there and wait.
    """
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
