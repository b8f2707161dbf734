"""FLOP by counting: against numbers worked out by hand, a mask counted cell by cell, and torch's own counter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from peft import LoraConfig
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, LlamaConfig, T5Config

from sacglam import config as configuration
from sacglam.config import ModelConfig
from sacglam.models.causal import CausalLM
from sacglam.models.loading import load_model, lora_config
from sacglam.models.packing import PAD_SEGMENT, PROMPT_SEGMENT, attention_mask, pack, pack_seq2seq
from sacglam.models.seq2seq import Seq2SeqLM
from sacglam.models.tokens import TokenisedQuery
from sacglam.tools.profile.cost import (
    Cost,
    Extent,
    Positions,
    Stack,
    cost_of,
    extent,
    forwards_per_step,
    layer_matrices,
)


def states(prompt: int, *actions: int) -> TokenisedQuery:
    return TokenisedQuery(np.arange(1, prompt + 1), tuple(np.arange(1, n + 1) for n in actions))


RAGGED = [states(5, 3, 1, 2), states(9, 4), states(2, 1, 1, 6, 2)]
QUERIES = [states(20 + i, 3, 2, 5, 4) for i in range(6)]


def test_extent_counts_what_the_packed_mask_shows() -> None:
    packed = pack(RAGGED, bucket=8)
    real_BS = packed.segment_BS != PAD_SEGMENT
    seen_BSS = attention_mask(packed.segment_BS)[:, 0] & real_BS[:, :, None] & real_BS[:, None, :]
    prompt_BS = packed.segment_BS == PROMPT_SEGMENT
    prompt, actions = (
        Positions(int(rows_BS.sum()), int(seen_BSS[rows_BS].sum())) for rows_BS in (prompt_BS, real_BS & ~prompt_BS)
    )
    assert extent(RAGGED, encoder=False) == Extent(prompt, actions, len(packed.scored_rows_R))


def test_extent_counts_what_encoder_and_decoder_see() -> None:
    """A prompt's token sees its whole prompt, a decoder's position its segment's mask and the whole prompt."""
    packed = pack_seq2seq(RAGGED, start=0, bucket=8)
    prompt_BP, real_BS = packed.prompt_mask_BP, packed.segment_BS != PAD_SEGMENT
    own_BSS = attention_mask(packed.segment_BS)[:, 0] & real_BS[:, :, None] & real_BS[:, None, :]
    cross_BSP = real_BS[:, :, None] & prompt_BP[:, None, :]
    both_ways_BPP = prompt_BP[:, :, None] & prompt_BP[:, None, :]
    found = extent(RAGGED, encoder=True)
    assert found == Extent(
        prompt=Positions(int(prompt_BP.sum()), int(both_ways_BPP.sum())),
        actions=Positions(int(real_BS.sum()), int(own_BSS.sum() + cross_BSP.sum())),
        rows=len(packed.scored_rows_R),
    )
    assert found.tokens == packed.tokens - int((~prompt_BP).sum()) - int((~real_BS).sum())


def test_one_scoring_forward_of_half_a_billion_parameters() -> None:
    """Qwen2.5-0.5B at P = 200, 10 actions of 4 tokens: 183 GFLOP."""
    layer = 2 * 896 * 896 + 2 * 896 * 128 + 3 * 896 * 4864
    stack = Stack(matrices=24 * layer, adapter=0, attention=24 * 896)
    cost = Cost(stack, stack, output=896 * 151936, encoder=False)
    assert cost.forward(cost.extent([states(200, *[4] * 10)])) == pytest.approx(183e9, rel=0.003)


def test_one_scoring_forward_of_flan_t5_base() -> None:
    """At P = 200, 10 actions of 4 tokens: 53 GFLOP, of which the encoder takes 35 and cross-attention's keys 6."""
    square, feed_forward = 768 * 768, 3 * 768 * 2048
    cost = Cost(
        prompt=Stack(matrices=12 * (4 * square + feed_forward + 2 * square), adapter=0, attention=12 * 768),
        actions=Stack(matrices=12 * (4 * square + feed_forward + 2 * square), adapter=0, attention=12 * 768),
        output=768 * 32128,
        encoder=True,
    )
    state = cost.extent([states(200, *[4] * 10)])
    # Each action's start token and its 4 see 1 + 2 + 3 + 4 + 5 positions of their own, and 200 of the prompt each.
    assert state == Extent(Positions(200, 200 * 200), Positions(50, 10 * (15 + 5 * 200)), rows=1 + 10 * 3)
    encoder = 2 * 200 * 12 * (4 * square + feed_forward) + 4 * 12 * 768 * 200 * 200
    keys_and_values = 2 * 200 * 12 * 2 * square
    decoder = 2 * 50 * 12 * (6 * square + feed_forward) + 4 * 12 * 768 * 10_150
    assert cost.forward(state) == encoder + keys_and_values + decoder + 2 * 768 * 32128 * 31
    assert cost.forward(state) == pytest.approx(53e9, rel=0.003)


def tiny_lm(adapters_rank: int = 4) -> CausalLM:
    shape = LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(shape, attn_implementation="eager").requires_grad_(False)
    return CausalLM(model, LoraConfig(r=adapters_rank, target_modules="all-linear", task_type="CAUSAL_LM"), bucket=16)


def tiny_t5(feed_forward: str) -> Seq2SeqLM:
    shape = T5Config(
        vocab_size=300,
        d_model=64,
        d_kv=24,
        d_ff=160,
        num_layers=6,
        num_decoder_layers=8,
        num_heads=4,
        feed_forward_proj=feed_forward,
    )
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(shape, attn_implementation="eager").requires_grad_(False).eval()
    return Seq2SeqLM(model, LoraConfig(r=4, target_modules="all-linear", task_type="SEQ_2_SEQ_LM"), bucket=16)


def test_the_parts_of_a_cost_are_read_off_the_model() -> None:
    lm = tiny_lm()
    query, key_value, mlp = 64 * 4 * 24, 64 * 2 * 24, 64 * 160
    stack = Stack(
        matrices=8 * (2 * query + 2 * key_value + 3 * mlp),
        adapter=8 * 4 * (2 * (64 + 96) + 2 * (64 + 48) + 3 * (64 + 160)),
        attention=8 * 4 * 24,
    )
    assert cost_of(lm) == Cost(stack, stack, output=64 * 300, encoder=False)
    assert len(layer_matrices(lm)) == 8 * 7
    plain = cost_of(lm).plain()
    assert (plain.prompt.adapter, plain.actions.adapter) == (0, 0)


@pytest.mark.parametrize(("feed_forward", "matrices"), [("relu", 2), ("gated-gelu", 3)])
def test_an_encoder_decoders_matrices_go_to_what_meets_them(feed_forward: str, matrices: int) -> None:
    """6 layers encode. Of the 8 that decode, 2 of the 8 matrices of attention make keys and values of the prompt."""
    lm = tiny_t5(feed_forward)
    attention, mlp = 64 * 4 * 24, 64 * 160
    attention_adapter, mlp_adapter = 4 * (64 + 96), 4 * (64 + 160)
    assert cost_of(lm) == Cost(
        prompt=Stack(
            matrices=6 * (4 * attention + matrices * mlp) + 8 * 2 * attention,
            adapter=6 * (4 * attention_adapter + matrices * mlp_adapter) + 8 * 2 * attention_adapter,
            attention=6 * 4 * 24,
        ),
        actions=Stack(
            matrices=8 * (6 * attention + matrices * mlp),
            adapter=8 * (6 * attention_adapter + matrices * mlp_adapter),
            attention=8 * 4 * 24,
        ),
        output=64 * 300,
        encoder=True,
    )
    assert len(layer_matrices(lm)) == 6 * (4 + matrices) + 8 * (8 + matrices)


def computed_by_decoder_only() -> tuple[CausalLM, Extent]:
    lm = tiny_lm()
    packed = lm.pack(QUERIES)
    rows, length = packed.ids_BS.shape
    return lm, Extent(Positions(0, 0), Positions(rows * length, rows * length * length), len(packed.scored_rows_R))


def computed_by_encoder_decoder(feed_forward: str) -> tuple[Seq2SeqLM, Extent]:
    lm = tiny_t5(feed_forward)
    packed = lm.pack(QUERIES)
    (rows, prompt), length = packed.prompt_ids_BP.shape, packed.ids_BS.shape[1]
    return lm, Extent(
        Positions(rows * prompt, rows * prompt * prompt),
        Positions(rows * length, rows * length * (length + prompt)),
        len(packed.scored_rows_R),
    )


@pytest.mark.parametrize(
    "computed_by",
    [
        computed_by_decoder_only,
        partial(computed_by_encoder_decoder, "relu"),
        partial(computed_by_encoder_decoder, "gated-gelu"),
    ],
    ids=["llama", "t5", "flan-t5"],
)
def test_it_agrees_with_torchs_counter(computed_by: Callable[[], tuple[CausalLM | Seq2SeqLM, Extent]]) -> None:
    """What the machine computes includes padding and hidden pairs, so that is what the formula is given."""
    lm, computed = computed_by()
    cost, packed = cost_of(lm), lm.pack(QUERIES)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        lm.forward(packed)
    assert counter.get_total_flops() == cost.forward(computed)
    with FlopCounterMode(display=False) as counter:
        lm.forward(packed).log_probs_BA.sum().backward()
    # Below a stack's first adapters nothing learns: its inputs need no gradient, a saving that is not counted.
    assert counter.get_total_flops() == pytest.approx(cost.forward(computed) + cost.backward(computed), rel=0.03)


@pytest.mark.parametrize(
    ("overrides", "forwards"),
    [
        ([], 65),
        (["critic.target_backbone=online"], 49),
        (["critic.backbone=frozen", "critic.target_backbone=online"], 49),
        (["critic.backbone=separate"], 97),
        (["critic.backbone=separate", "critic.target_backbone=online"], 97),
        (["algo.batch_size=128", "algo.updates_per_interval=8"], 129),
        (["algo={type: ppo}"], 33),
        (["algo={type: ppo, epochs: 4, update_interval: 480}", "critic.backbone=separate"], 17),
    ],
)
def test_forwards_of_a_step(overrides: list[str], forwards: float) -> None:
    """With the paper's 2 updates of 256 every 32 steps: 1 + 16 x 4 = 65, and with PPO's 16 epochs 1 + 16 x 2 = 33."""
    assert forwards_per_step(configuration.override(configuration.Config(), overrides)) == forwards


def test_a_base_in_4_bits_costs_what_it_multiplies() -> None:
    pytest.importorskip("bitsandbytes")
    plain, packed = (
        CausalLM(load_model(settings, torch.device("cpu")).model, lora_config(settings))
        for settings in (ModelConfig(), ModelConfig(quantize="nf4"))
    )
    assert cost_of(packed) == cost_of(plain)
    found, expected = ([(m.shape, m.dtype) for m in layer_matrices(lm)] for lm in (packed, plain))
    assert found == expected
