"""The references for the packed forward of an encoder-decoder.

As one would write them with transformers and peft: each action is a separate decoder sequence. Either the encoder also
reads a copy of the prompt for every action (*separate*), or the prompt is encoded once and its hidden states are
repeated (*repeat*), so the encoder runs once, but the cross-attention keys are computed for every action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from peft import LoraConfig
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from sacglam.models.architectures import EncoderDecoder, start_token
from sacglam.models.packed_lm import ACTOR, LMOutput, PackedLM
from sacglam.models.tokens import TokenisedQuery


@dataclass(frozen=True)
class Sequences:
    """B prompts of at most P tokens, X actions of all rows with at most T - 1."""

    prompt_BP: Tensor
    attended_BP: Tensor  # 1 on tokens, 0 on padding
    row_X: Tensor
    started_XT: Tensor  # the start token and the action; padding on the right
    target_XT: Tensor  # the action and padding: what each position predicts
    length_X: Tensor
    sequence_BA: Tensor
    actions_BA: Tensor
    lengths_BA: Tensor


class SeparateSeq2SeqLM(PackedLM):
    """A `PackedLM` that packs nothing."""

    def __init__(self, model: PreTrainedModel, lora: LoraConfig, adapters: Sequence[str], *, once: bool) -> None:
        """With `once` the prompt is encoded once and repeated, else it is encoded again for each action.

        Target adapters serve Q values alone: for them the output layer is not applied at all.
        """
        self._scale = EncoderDecoder(model).logit_scale()
        super().__init__(model, lora, adapters)
        self._once = once

    def pack(self, queries: Sequence[TokenisedQuery]) -> Sequences:  # type: ignore[override]
        """One decoder sequence for each action."""
        prompts = [torch.from_numpy(q.prompt) for q in queries]
        actions = [torch.from_numpy(ids) for q in queries for ids in q.actions]
        counts = [len(q.actions) for q in queries]
        start = torch.tensor([start_token(self._model.config)])
        mask_BA = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
        length_X = torch.tensor([len(ids) for ids in actions])
        sequence_BA = torch.zeros_like(mask_BA, dtype=torch.long)
        sequence_BA[mask_BA] = torch.arange(len(actions))
        packed = Sequences(
            prompt_BP=pad_sequence(prompts, batch_first=True),
            attended_BP=pad_sequence([torch.ones_like(ids) for ids in prompts], batch_first=True),
            row_X=torch.arange(len(queries)).repeat_interleave(torch.tensor(counts)),
            started_XT=pad_sequence([torch.cat([start, ids]) for ids in actions], batch_first=True),
            target_XT=pad_sequence([torch.cat([ids, start]) for ids in actions], batch_first=True),
            length_X=length_X,
            sequence_BA=sequence_BA,
            actions_BA=mask_BA,
            lengths_BA=torch.where(mask_BA, length_X[sequence_BA], 1),
        )
        return Sequences(**{f.name: getattr(packed, f.name).to(self.device) for f in fields(packed)})

    def forward(self, packed: Sequences, adapter: str = ACTOR) -> LMOutput:  # type: ignore[override]
        """One pass over all sequences."""
        self._select(adapter)
        attended_XP = packed.attended_BP[packed.row_X]
        if self._once:
            encoded_BPH = self._model.get_encoder()(packed.prompt_BP, packed.attended_BP).last_hidden_state
            encoded_XPH = encoded_BPH[packed.row_X]
        else:
            encoded_XPH = self._model.get_encoder()(packed.prompt_BP[packed.row_X], attended_XP).last_hidden_state
        hidden_XTH = self._model.get_decoder()(
            input_ids=packed.started_XT,
            encoder_hidden_states=encoded_XPH,
            encoder_attention_mask=attended_XP,
            use_cache=False,
        ).last_hidden_state
        place_T = torch.arange(hidden_XTH.shape[1], device=self.device)
        if adapter.endswith("_target"):
            log_prob_XT = hidden_XTH.new_zeros(hidden_XTH.shape[:2])
        else:
            log_prob_XTV = torch.log_softmax(self._output(self._scale * hidden_XTH).float(), dim=-1)
            log_prob_XT = log_prob_XTV.gather(-1, packed.target_XT[..., None]).squeeze(-1)
        score_X = log_prob_XT.masked_fill(place_T >= packed.length_X[:, None], 0).sum(dim=-1)
        last_XH = hidden_XTH[torch.arange(len(packed.length_X), device=self.device), packed.length_X]
        return LMOutput(
            log_probs_BA=score_X[packed.sequence_BA].masked_fill(~packed.actions_BA, 0),
            action_hidden_BAH=last_XH[packed.sequence_BA],
            prompt_hidden_BH=hidden_XTH[packed.sequence_BA[:, 0], 0],
            actions_BA=packed.actions_BA,
            lengths_BA=packed.lengths_BA,
        )
