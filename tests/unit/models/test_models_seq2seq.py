"""What only an encoder-decoder has: an encoder that runs once, a start token, and a scale before the output layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration

from sacglam.errors import ModelError
from sacglam.models.architectures import EncoderDecoder, start_token
from sacglam.models.packed_lm import ACTOR, PackedLM
from sacglam.models.packing import attention_mask, pack_seq2seq
from sacglam.models.tokens import TokenisedQuery
from tests.unit.models.reference import SEQ2SEQ, lora, ragged, tiny_lm, tiny_model

#              prompt       actions
QUERIES = [
    TokenisedQuery(np.array([11, 12, 13]), (np.array([1, 2]), np.array([3]))),
    TokenisedQuery(np.array([21]), (np.array([4, 5, 6]),)),
]


def test_the_layout_of_two_ragged_rows() -> None:
    packed = pack_seq2seq(QUERIES, start=9)
    assert packed.prompt_ids_BP.tolist() == [[11, 12, 13], [21, 0, 0]]
    assert packed.prompt_mask_BP.tolist() == [[True, True, True], [True, False, False]]
    assert packed.ids_BS.tolist() == [[9, 1, 2, 9, 3], [9, 4, 5, 6, 0]]
    assert packed.end_BS.tolist() == [[3, 3, 3, 5, 5], [4, 4, 4, 4, 5]]
    # The first start token predicts every action's first token: 1 and 3; in row 1, 4.
    assert packed.scored_rows_R.tolist() == [0, 1, 5, 6, 7]
    assert packed.token_row_N.tolist() == [0, 0, 1, 2, 3, 4]
    assert packed.row_starts.tolist() == [0, 2, 3, 4, 5, 6]
    assert packed.token_id_N.tolist() == [1, 3, 2, 4, 5, 6]
    assert packed.token_index_BAT.tolist() == [[[0, 2, 6], [1, 6, 6]], [[3, 4, 5], [6, 6, 6]]]
    assert packed.last_row_BA.tolist() == [[2, 4], [8, 0]]
    assert packed.prompt_row_B.tolist() == [0, 5]
    assert packed.actions_BA.tolist() == [[True, True], [True, False]]
    assert packed.lengths_BA.tolist() == [[2, 1], [3, 1]]


def test_the_bucket_rounds_both_lengths_up() -> None:
    packed = pack_seq2seq(QUERIES, start=9, bucket=4)
    assert packed.prompt_ids_BP.tolist() == [[11, 12, 13, 0], [21, 0, 0, 0]]
    assert packed.ids_BS.tolist() == [[9, 1, 2, 9, 3, 0, 0, 0], [9, 4, 5, 6, 0, 0, 0, 0]]
    assert packed.prompt_row_B.tolist() == [0, 8]
    assert packed.last_row_BA.tolist() == [[2, 4], [11, 0]]


def test_who_sees_whom() -> None:
    mask = attention_mask(pack_seq2seq(QUERIES, start=9).end_BS)
    rows = [["".join("x" if seen else "." for seen in row) for row in sheet.tolist()] for sheet in mask[:, 0]]
    assert rows[0] == [
        "x....",  # the first action, from its start token on
        "xx...",
        "xxx..",
        "...x.",  # the second: itself alone
        "...xx",
    ]
    assert rows[1] == ["x....", "xx...", "xxx..", "xxxx.", "....x"]  # padding: only itself


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_all_start_tokens_of_a_state_have_read_the_same(name: str) -> None:
    lm = tiny_lm(name)
    packed = lm.pack(ragged(counts=[5]))
    hidden_SH = lm.architecture.hidden(packed)[0]
    starts_AH = hidden_SH[[0, *(packed.end_BS[0].diff().nonzero()[:, 0] + 1).tolist()]]
    assert starts_AH.shape[0] == 5
    torch.testing.assert_close(starts_AH, starts_AH[:1].expand_as(starts_AH), atol=2e-6, rtol=0)
    assert torch.equal(lm.forward(packed).prompt_hidden_BH[0], hidden_SH[0])


def test_what_stands_in_the_prompts_padding_does_not_matter() -> None:
    lm = tiny_lm("flan")
    packed = lm.pack(ragged())
    assert packed.prompt_ids_BP is not None
    assert packed.prompt_mask_BP is not None
    before = lm.forward(packed)
    assert not packed.prompt_mask_BP.all()
    packed.prompt_ids_BP[~packed.prompt_mask_BP] = 7
    after = lm.forward(packed)
    assert torch.equal(after.log_probs_BA, before.log_probs_BA)
    assert torch.equal(after.action_hidden_BAH, before.action_hidden_BAH)


def test_the_prompt_is_read_once_and_its_keys_are_made_once() -> None:
    base = tiny_model("t5")
    lm = PackedLM(base, lora("t5"))
    [query] = ragged(counts=[5])
    rows: list[tuple[str, int]] = []

    def watch(name: str, module: nn.Module) -> None:
        module.register_forward_hook(lambda module, args, output: rows.append((name, output.shape[1])))

    watch("encoder", base.encoder.block[0].layer[-1])
    watch("cross-attention keys", base.decoder.block[0].layer[1].EncDecAttention.k)
    lm.forward(lm.pack([query]))
    assert rows == [("encoder", len(query.prompt)), ("cross-attention keys", len(query.prompt))]


@pytest.mark.parametrize("name", ["flan", "umt5"])
def test_adapters_are_on_encoder_decoder_and_cross_attention(name: str) -> None:
    names = "\n".join(tiny_lm(name).adapter_parameters(ACTOR))
    for part in ("encoder.block.1.layer.0.SelfAttention", "decoder.block.2.layer.1.EncDecAttention"):
        assert part in names
    for part in ("encoder.block.0.layer.1.DenseReluDense", "decoder.block.0.layer.2.DenseReluDense"):
        assert part in names


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_the_scale_before_the_output_layer(name: str) -> None:
    model = tiny_model(name)
    assert EncoderDecoder(model).logit_scale() == (32**-0.5 if name in ("t5", "umt5") else 1.0)
    assert not model.lm_head._forward_pre_hooks
    assert not model.decoder._forward_hooks


def test_the_critic_reads_the_hidden_state_before_that_scale() -> None:
    lm = tiny_lm("t5")
    packed = lm.pack(ragged(counts=[2]))
    output = lm.forward(packed)
    assert torch.equal(output.action_hidden_BAH[0, 0], lm.architecture.hidden(packed)[0, packed.last_row_BA[0, 0]])
    logits_V: Tensor = 32**-0.5 * output.prompt_hidden_BH[0] @ tiny_model("t5").lm_head.weight.T
    first = torch.log_softmax(logits_V, dim=-1)[packed.token_id_N[0]]
    one_token = TokenisedQuery(ragged(counts=[2])[0].prompt, (packed.token_id_N[:1].numpy(),))
    torch.testing.assert_close(lm.forward(lm.pack([one_token])).log_probs_BA[0, 0], first, atol=1e-5, rtol=0)


def test_decoding_begins_with_the_padding_token() -> None:
    config = T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, pad_token_id=5)
    assert start_token(config) == 5
    model = T5ForConditionalGeneration(config).requires_grad_(False).eval()
    assert PackedLM(model, lora("t5")).pack(QUERIES).ids_BS[0].tolist() == [5, 1, 2, 5, 3]
    config.update({"decoder_start_token_id": 0})  # as MADLAD-400, whose padding token is 1
    assert start_token(config) == 0
    with pytest.raises(ModelError, match="expected decoder_start_token_id in this t5's config"):
        start_token(T5Config(pad_token_id=None))
