"""Log-probabilities of chosen tokens through a frozen output layer, without holding all logits at once."""

from typing import Any

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
    def forward(ctx: Any, hidden_RH: Tensor, weight_VH: Tensor, token_row_N: Tensor, token_id_N: Tensor) -> Tensor:
        needs_grad = ctx.needs_input_grad[0]
        dtype = torch.promote_types(hidden_RH.dtype, torch.float32)
        rows = max(1, _CHUNK_ELEMENTS // weight_VH.shape[0])
        row_N, order_N = torch.sort(token_row_N, stable=True)
        id_N = token_id_N[order_N]
        bounds = torch.searchsorted(
            row_N, torch.arange(0, hidden_RH.shape[0] + rows, rows, device=row_N.device)
        ).tolist()
        sorted_log_prob_N = torch.empty(len(row_N), dtype=dtype, device=hidden_RH.device)
        mean_weight_RH = torch.empty_like(hidden_RH) if needs_grad else None
        for chunk, start in enumerate(range(0, hidden_RH.shape[0], rows)):
            logits_rV = hidden_RH[start : start + rows] @ weight_VH.T
            log_prob_rV = torch.log_softmax(logits_rV.to(dtype), dim=-1)
            span = slice(bounds[chunk], bounds[chunk + 1])
            sorted_log_prob_N[span] = log_prob_rV[row_N[span] - start, id_N[span]]
            if mean_weight_RH is not None:
                mean_weight_RH[start : start + rows] = log_prob_rV.exp_().to(weight_VH.dtype) @ weight_VH
        log_prob_N = torch.empty_like(sorted_log_prob_N)
        log_prob_N[order_N] = sorted_log_prob_N
        ctx.save_for_backward(weight_VH, token_row_N, token_id_N, mean_weight_RH)
        return log_prob_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        weight_VH, token_row_N, token_id_N, mean_weight_RH = ctx.saved_tensors
        # Summed in float32: the gradients of a state's actions meet in one row and nearly cancel.
        grad_N1 = grads[0][:, None]
        per_token_NH = weight_VH[token_id_N].to(grad_N1.dtype)
        per_token_NH = per_token_NH.sub_(mean_weight_RH[token_row_N]).mul_(grad_N1)
        grad_RH = torch.zeros_like(mean_weight_RH, dtype=grad_N1.dtype).index_add_(0, token_row_N, per_token_NH)
        return grad_RH.to(mean_weight_RH.dtype), None, None, None


def selected_log_probs(hidden_RH: Tensor, weight_VH: Tensor, token_row_N: Tensor, token_id_N: Tensor) -> Tensor:
    """log p(token_id[n]) under softmax(hidden[token_row[n]] @ weight.T), float32 (float64 stays), shape (N,).

    `weight_VH` gets no gradient.
    """
    log_prob_N: Tensor = _SelectedLogProbs.apply(hidden_RH, weight_VH.detach(), token_row_N, token_id_N)  # type: ignore[no-untyped-call]
    return log_prob_N


class SelectedLogProbs(nn.Module):
    """`selected_log_probs` through an output layer.

    A module, because ZeRO-3 gathers a sharded weight when a module that owns it is called, and the output layer itself
    never is: it would compute the logits of all positions.
    """

    def __init__(self, output: nn.Linear, scale: float = 1.0) -> None:
        """Shares the weight of `output`; `scale` multiplies hidden states before it, as in T5."""
        super().__init__()
        self.weight = output.weight
        self._scale = scale

    def forward(self, hidden_RH: Tensor, token_row_N: Tensor, token_id_N: Tensor) -> Tensor:
        """log p(token_id[n]) after hidden[token_row[n]], float32, shape (N,)."""
        scaled_RH = hidden_RH if self._scale == 1.0 else hidden_RH * self._scale
        return selected_log_probs(scaled_RH, self.weight, token_row_N, token_id_N)
