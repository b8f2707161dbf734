"""The reference for the packed forward: every action after its own copy of the prompt.

Written as one would write it with transformers and peft: all B * A sequences `prompt + action` in one batch, padded on
the right, causal attention by sdpa, the model's logits, log-softmax at the positions that predict action tokens. It
has the same interface, so the learner, losses, heads, targets and optimizer around it are identical, and rows that
need no bootstrap are left out in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from peft import LoraConfig
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from sacglam.models.packed_lm import ACTOR, LMOutput, PackedLM
from sacglam.models.tokens import TokenisedQuery


@dataclass(frozen=True)
class Separate:
    """X sequences of at most T tokens, the actions of all B rows; N action tokens. Padding as in `Packed`."""

    ids_XT: Tensor
    attended_XT: Tensor  # 1 on tokens, 0 on padding
    sequence_N: Tensor  # of each action token: its sequence
    predicting_N: Tensor  # ... the position before it
    token_id_N: Tensor
    token_index_BAT: Tensor
    last_X: Tensor  # position of each sequence's last token
    sequence_BA: Tensor
    first_sequence_B: Tensor
    prompt_last_B: Tensor
    actions_BA: Tensor
    lengths_BA: Tensor


class SeparateLM(PackedLM):
    """A `PackedLM` that packs nothing."""

    def __init__(self, model: PreTrainedModel, lora: LoraConfig, adapters: Sequence[str], *, lean: bool) -> None:
        """With `lean` the output layer is applied where a token is scored, else everywhere, as transformers does.

        Target adapters serve Q values alone: for them the output layer is not applied at all.
        """
        super().__init__(model, lora, adapters)
        self._lean = lean

    def pack(self, queries: Sequence[TokenisedQuery]) -> Separate:  # type: ignore[override]
        """One sequence for each action."""
        actions = [(b, a, q.prompt, ids) for b, q in enumerate(queries) for a, ids in enumerate(q.actions)]
        shape = (len(queries), max(len(q.actions) for q in queries))
        sequences: list[Tensor] = []
        sequence: list[int] = []
        predicting: list[int] = []
        token: list[int] = []
        longest = max(len(ids) for _, _, _, ids in actions)
        total = sum(len(ids) for _, _, _, ids in actions)
        token_index = torch.full((*shape, longest), total)
        sequence_BA = torch.zeros(shape, dtype=torch.long)
        mask_BA = torch.zeros(shape, dtype=torch.bool)
        lengths_BA = torch.ones(shape, dtype=torch.long)
        for x, (b, a, prompt, ids) in enumerate(actions):
            token_index[b, a, : len(ids)] = torch.arange(len(ids)) + len(token)
            sequences.append(torch.cat([torch.from_numpy(prompt), torch.from_numpy(ids)]))
            sequence += [x] * len(ids)
            predicting += range(len(prompt) - 1, len(prompt) + len(ids) - 1)
            token += ids.tolist()
            sequence_BA[b, a] = x
            mask_BA[b, a] = True
            lengths_BA[b, a] = len(ids)
        packed = Separate(
            ids_XT=pad_sequence(sequences, batch_first=True),
            attended_XT=pad_sequence([torch.ones_like(s) for s in sequences], batch_first=True),
            sequence_N=torch.tensor(sequence),
            predicting_N=torch.tensor(predicting),
            token_id_N=torch.tensor(token),
            token_index_BAT=token_index,
            last_X=torch.tensor([len(s) - 1 for s in sequences]),
            sequence_BA=sequence_BA,
            first_sequence_B=sequence_BA[:, 0],
            prompt_last_B=torch.tensor([len(q.prompt) - 1 for q in queries]),
            actions_BA=mask_BA,
            lengths_BA=lengths_BA,
        )
        return Separate(**{name: value.to(self.device) for name, value in vars(packed).items()})

    def forward(self, packed: Separate, adapter: str = ACTOR) -> LMOutput:  # type: ignore[override]
        """One pass over all sequences."""
        self._select(adapter)
        inputs = {"input_ids": packed.ids_XT, "attention_mask": packed.attended_XT, "use_cache": False}
        hidden_XTH = self._model.get_decoder()(**inputs).last_hidden_state
        where = (packed.sequence_N, packed.predicting_N)
        if adapter.endswith("_target"):
            log_prob_N = torch.zeros(len(packed.token_id_N), device=self.device)
        else:
            logits_NV = self._output(hidden_XTH[where]) if self._lean else self._output(hidden_XTH)[where]
            log_prob_NV = torch.log_softmax(logits_NV.float(), dim=-1)
            log_prob_N = log_prob_NV.gather(-1, packed.token_id_N[:, None]).squeeze(-1)
        padded_N = torch.cat([log_prob_N, log_prob_N.new_zeros(1)])
        last_XH = hidden_XTH[torch.arange(len(packed.last_X), device=self.device), packed.last_X]
        return LMOutput(
            log_probs_BA=padded_N[packed.token_index_BAT].sum(dim=-1),
            action_hidden_BAH=last_XH[packed.sequence_BA],
            prompt_hidden_BH=hidden_XTH[packed.first_sequence_B, packed.prompt_last_B],
            actions_BA=packed.actions_BA,
            lengths_BA=packed.lengths_BA,
        )
