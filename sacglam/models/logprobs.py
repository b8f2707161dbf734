"""Log-probabilities of chosen tokens through a frozen output layer, without holding all logits at once."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_CHUNK_ELEMENTS = 1 << 25  # logits held at once: 128 MiB in float32


class _SelectedLogProbs(torch.autograd.Function):
    """log softmax(h W^T)[token], chunked over rows; the gradient is prepared in the forward pass.

    W is frozen, so the only gradient is d log p(v) / dh = W_v - sum_u p(u) W_u, and p W is computed while a chunk's
    logits are in memory: two matrix products, as many as without chunks, and R x H values kept instead of R x V.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_RH: Tensor,
        weight_VH: Tensor,
        token_row_N: Tensor,
        token_id_N: Tensor,
        row_starts: npt.NDArray[np.int64],
    ) -> Tensor:
        needs_grad = ctx.needs_input_grad[0]
        dtype = torch.promote_types(hidden_RH.dtype, torch.float32)
        rows = max(1, _CHUNK_ELEMENTS // weight_VH.shape[0])
        log_prob_N = torch.empty(len(token_row_N), dtype=dtype, device=hidden_RH.device)
        mean_weight_RH = torch.empty_like(hidden_RH) if needs_grad else None
        for start in range(0, hidden_RH.shape[0], rows):
            end = min(start + rows, hidden_RH.shape[0])
            log_prob_rV = torch.log_softmax(logits(hidden_RH[start:end], weight_VH), dim=-1)
            span = slice(row_starts[start], row_starts[end])
            log_prob_N[span] = log_prob_rV[token_row_N[span] - start, token_id_N[span]]
            if mean_weight_RH is not None:
                mean_weight_RH[start:end] = log_prob_rV.exp_().to(weight_VH.dtype) @ weight_VH
        # Not W itself: with ZeRO 3 it is gathered for this pass only, and would stay until the backward pass.
        ctx.save_for_backward(weight_VH[token_id_N] if needs_grad else None, token_row_N, mean_weight_RH)
        return log_prob_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        weight_NH, token_row_N, mean_weight_RH = ctx.saved_tensors
        # Summed in float32: the gradients of a state's actions meet in one row and nearly cancel.
        grad_N1 = grads[0][:, None]
        per_token_NH = (weight_NH.to(grad_N1.dtype) - mean_weight_RH[token_row_N]).mul_(grad_N1)
        grad_RH = torch.zeros_like(mean_weight_RH, dtype=grad_N1.dtype).index_add_(0, token_row_N, per_token_NH)
        return grad_RH.to(mean_weight_RH.dtype), None, None, None, None


def logits(hidden_RH: Tensor, weight_VH: Tensor) -> Tensor:
    """hidden @ weight.T in float32 (float64 stays), shape (R, V).

    Rounded to bfloat16 before the softmax, logits would move the policy of every tenth state beyond the parity gate.
    """
    if hidden_RH.dtype in (torch.float32, torch.float64):
        return hidden_RH @ weight_VH.T
    if hidden_RH.is_cuda:
        return torch.mm(hidden_RH, weight_VH.T, out_dtype=torch.float32)
    # The CPU has no such product; in blocks, so that no float32 copy of the whole weight is made.
    blocks = torch.split(weight_VH, max(1, _CHUNK_ELEMENTS // weight_VH.shape[1]))
    return torch.cat([hidden_RH.float() @ block.float().T for block in blocks], dim=1)


class SelectedLogProbs(nn.Module):
    """Log-probabilities of chosen tokens through an output layer, which gets no gradient.

    A module that is itself called (see `Backend`), because the output layer would compute the logits of all
    positions.
    """

    def __init__(self, output: nn.Linear, scale: float = 1.0) -> None:
        """Shares the weight of `output`; `scale` multiplies hidden states before it, as in T5."""
        super().__init__()
        self.weight = output.weight
        self._scale = scale

    def forward(
        self, hidden_RH: Tensor, token_row_N: Tensor, token_id_N: Tensor, row_starts: npt.NDArray[np.int64]
    ) -> Tensor:
        """log p(token_id[n]) under softmax(hidden[token_row[n]] @ weight.T), float32 (float64 stays), shape (N,).

        `token_row_N` ascends; row r's tokens are `row_starts[r]` to `row_starts[r + 1]`. `row_starts` (R + 1,) is on
        the host, which then need not wait for the device.
        """
        scaled_RH = hidden_RH if self._scale == 1.0 else hidden_RH * self._scale
        return _SelectedLogProbs.apply(  # type: ignore[no-untyped-call]
            scaled_RH, self.weight.detach(), token_row_N, token_id_N, row_starts
        )
