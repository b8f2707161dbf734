"""FLOP by counting: against numbers worked out by hand, a mask counted cell by cell, and torch's own counter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from peft import LoraConfig
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, LlamaConfig

from sacglam import config as configuration
from sacglam.config import ModelConfig
from sacglam.models.causal import CausalLM
from sacglam.models.loading import load_model, lora_config
from sacglam.models.packing import PAD_SEGMENT, attention_mask, pack
from sacglam.models.tokens import TokenisedQuery
from sacglam.profiling.cost import Cost, Extent, cost_of, extent, forwards_per_step, layer_matrices


def states(prompt: int, *actions: int) -> TokenisedQuery:
    return TokenisedQuery(np.arange(1, prompt + 1), tuple(np.arange(1, n + 1) for n in actions))


RAGGED = [states(5, 3, 1, 2), states(9, 4), states(2, 1, 1, 6, 2)]


def test_extent_counts_what_the_packed_mask_shows() -> None:
    packed = pack(RAGGED, bucket=8)
    real_BS = packed.segment_BS != PAD_SEGMENT
    seen_BSS = attention_mask(packed.segment_BS)[:, 0] & real_BS[:, :, None] & real_BS[:, None, :]
    assert extent(RAGGED) == Extent(int(real_BS.sum()), int(seen_BSS.sum()), len(packed.scored_rows_R))


def test_one_scoring_forward_of_half_a_billion_parameters() -> None:
    """Qwen2.5-0.5B at P = 200, 10 actions of 4 tokens: 183 GFLOP."""
    layer = 2 * 896 * 896 + 2 * 896 * 128 + 3 * 896 * 4864
    cost = Cost(matrices=24 * layer, adapter=0, attention=24 * 896, output=896 * 151936)
    assert cost.forward(extent([states(200, *[4] * 10)])) == pytest.approx(183e9, rel=0.003)


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


def test_the_parts_of_a_cost_are_read_off_the_model() -> None:
    lm = tiny_lm()
    query, key_value, mlp = 64 * 4 * 24, 64 * 2 * 24, 64 * 160
    assert cost_of(lm) == Cost(
        matrices=8 * (2 * query + 2 * key_value + 3 * mlp),
        adapter=8 * 4 * (2 * (64 + 96) + 2 * (64 + 48) + 3 * (64 + 160)),
        attention=8 * 4 * 24,
        output=64 * 300,
    )
    assert len(layer_matrices(lm)) == 8 * 7
    assert cost_of(lm).plain().adapter == 0


def test_it_agrees_with_torchs_counter() -> None:
    """What the machine computes includes padding and hidden pairs, so that is what the formula is given."""
    lm = tiny_lm()
    queries = [states(20 + i, 3, 2, 5, 4) for i in range(6)]
    packed = lm.pack(queries)
    rows, length = packed.ids_BS.shape
    computed = Extent(rows * length, rows * length * length, len(packed.scored_rows_R))
    cost = cost_of(lm)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        lm.forward(packed)
    assert counter.get_total_flops() == cost.forward(computed)
    with FlopCounterMode(display=False) as counter:
        lm.forward(packed).log_probs_BA.sum().backward()
    # Below the first layer's adapters nothing learns: its inputs need no gradient, a saving that is not counted.
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
