"""Tokens counted from the queries, FLOP worked out by hand, and the forward passes of an environment step."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, LlamaConfig, T5Config

from sacglam import config as configuration
from sacglam.config.sections import ModelConfig
from sacglam.models.loading import load_model, lora_config
from sacglam.models.packed_lm import ACTOR, PackedLM
from sacglam.models.tokens import TokenisedQuery
from sacglam.tools.profile.counting import PassCounter, matmul_rate

LLAMA = LlamaConfig(
    vocab_size=300,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=24,
    tie_word_embeddings=True,
)
T5 = T5Config(
    vocab_size=300,
    d_model=64,
    d_kv=24,
    d_ff=160,
    num_layers=6,
    num_decoder_layers=8,
    num_heads=4,
    feed_forward_proj="gated-gelu",
    decoder_start_token_id=0,
    pad_token_id=0,
)
RANK, HEADS = 4, 4 * 24
LAYER = 2 * 64 * HEADS + 2 * 64 * 48 + 3 * 64 * 160
"""Weights of a Llama layer: queries and output, keys and values, three matrices 64 x 160."""
ADAPTER = RANK * (2 * (64 + HEADS) + 2 * (64 + 48) + 3 * (64 + 160))
MLP, MLP_ADAPTER = 3 * 64 * 160, RANK * 3 * (64 + 160)


def states(prompt: int, *actions: int, first: int = 1) -> TokenisedQuery:
    """A prompt that begins with the token `first`, and actions of these lengths in tokens."""
    ids = tuple(np.arange(1, n + 1) + 10 * i for i, n in enumerate(actions))
    return TokenisedQuery(np.append(first, np.arange(2, prompt + 1)), ids)


ALIKE = [states(20, 3, 2, 5, 4, first=first) for first in range(1, 7)]
"""34 positions each, of which 1 + 2 + 1 + 4 + 3 are scored; the last MLP leaves out 19, all but the prompt's last."""
RAGGED = [states(5, 3, 1, 2), states(9, 4)]


def llama(attention: str = "sdpa", *, merged: bool = False, bucket: int = 1) -> PackedLM:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LLAMA, attn_implementation=attention).requires_grad_(False).eval()
    lora = LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    lm = PackedLM(model, lora, merged=merged)
    lm.bucket = bucket
    return lm


def t5() -> PackedLM:
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(T5, attn_implementation="eager").requires_grad_(False).eval()
    return PackedLM(model, LoraConfig(r=RANK, target_modules="all-linear", task_type="SEQ_2_SEQ_LM"))


class Counted:
    """A model whose passes are counted."""

    def __init__(self, lm: PackedLM, settings: ModelConfig | None = None) -> None:
        self.lm = lm
        self.counter = PassCounter(lm, settings or ModelConfig())

    def score(self, queries: list[TokenisedQuery]) -> torch.Tensor:
        with torch.no_grad():
            return self.lm.forward(self.lm.pack(queries), ACTOR).log_probs_BA

    def counts(self, queries: list[TokenisedQuery]) -> tuple[int, int]:
        """Tokens and positions of a pass."""
        before = self.counter.tokens, self.counter.positions
        self.score(queries)
        return self.counter.tokens - before[0], self.counter.positions - before[1]

    def scoring_flop(self) -> int:
        """Of the states of `ALIKE`, which have no padding."""
        with self.counter.flop:
            tokens, positions = self.counts(ALIKE)
        assert tokens == positions
        return self.counter.flop.get_total_flops()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_forward_pass_of_a_llama_by_hand(attention: str) -> None:
    """2 (M + m) FLOP a position, 4 a for each pair, 2 H V for each row that is scored."""
    layers = 2 * 8 * (LAYER + ADAPTER) * 6 * 34 - 2 * (MLP + MLP_ADAPTER) * 6 * 19
    pairs = 4 * 8 * HEADS * 6 * 34 * 34
    assert Counted(llama(attention)).scoring_flop() == layers + pairs + 2 * 64 * 300 * 6 * 11


def test_merging_adapters_costs_one_product_per_matrix_regardless_of_the_states() -> None:
    plain = 2 * 8 * LAYER * 6 * 34 - 2 * MLP * 6 * 19
    pairs, rows = 4 * 8 * HEADS * 6 * 34 * 34, 2 * 64 * 300 * 6 * 11
    merging = 2 * RANK * 8 * LAYER
    assert Counted(llama(merged=True)).scoring_flop() == plain + pairs + rows + merging


def test_a_forward_pass_of_a_t5_by_hand() -> None:
    """The encoder reads 20 positions; a decoder layer projects them to keys and values, and reads 18 of its own."""
    square, feed_forward = 64 * HEADS, 3 * 64 * 160
    square_lora, feed_forward_lora = RANK * (64 + HEADS), 3 * RANK * (64 + 160)
    encoder = 6 * (4 * (square + square_lora) + feed_forward + feed_forward_lora)
    cross = 8 * 2 * (square + square_lora)
    decoder = 8 * (6 * (square + square_lora) + feed_forward + feed_forward_lora)
    layers = 2 * (20 * (encoder + cross) + 18 * decoder)
    pairs = 4 * HEADS * (6 * 20 * 20 + 8 * 18 * (18 + 20))
    assert Counted(t5()).scoring_flop() == 6 * (layers + pairs + 2 * 64 * 300 * 11)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_forward_and_a_backward_pass_of_a_llama_by_hand(attention: str) -> None:
    """The frozen base has no gradients of its own: 2 (M + 2 m) a position, and two products for each of attention's."""
    counted = Counted(llama(attention))
    with counted.counter.flop:
        loss = counted.lm.forward(counted.lm.pack(ALIKE), ACTOR).log_probs_BA.sum()
        loss.backward()  # type: ignore[no-untyped-call]
    forward_backward = 2 * 8 * (2 * LAYER + 3 * ADAPTER) * 6 * 34 + 2 * 2 * 64 * 300 * 6 * 11
    forward_backward -= 2 * (2 * MLP + 3 * MLP_ADAPTER) * 6 * 19
    # The CPU's kernel computes the scores again; below the first layer's adapters nothing needs a gradient.
    pairs = (4 + (10 if attention == "sdpa" else 8)) * 8 * HEADS * 6 * 34 * 34
    assert counted.counter.flop.get_total_flops() == pytest.approx(forward_backward + pairs, rel=0.03)


def test_a_base_in_4_bits_takes_the_same_flop() -> None:
    pytest.importorskip("bitsandbytes")
    plain, packed = (
        Counted(PackedLM(loaded.model, lora_config(settings, loaded.config)), settings)
        for settings in (ModelConfig(), ModelConfig(quantize="nf4"))
        for loaded in [load_model(settings, torch.device("cpu"))]
    )
    assert packed.scoring_flop() == plain.scoring_flop()


def test_padding_is_among_the_positions_but_not_the_tokens() -> None:
    assert Counted(llama(bucket=16)).counts(RAGGED) == (5 + 6 + 9 + 4, 2 * 16)


def test_tokens_of_an_encoder_decoder_include_each_actions_start() -> None:
    assert Counted(t5()).counts(RAGGED) == ((5 + 6 + 3) + (9 + 4 + 1), 2 * 9 + 2 * 9)


@pytest.mark.parametrize("model", [llama, t5])
def test_a_state_that_occurs_twice_in_a_pass_counts_once(model: Callable[[], PackedLM]) -> None:
    counted = Counted(model())
    assert counted.counts([*RAGGED, RAGGED[0]]) == counted.counts(RAGGED)


def test_counting_changes_no_output() -> None:
    counted = Counted(llama())
    with counted.counter.flop:
        scores = counted.score(RAGGED)
    assert torch.equal(scores, counted.score(RAGGED))
    plain = llama()
    assert torch.equal(scores, plain.forward(plain.pack(RAGGED)).log_probs_BA)


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
    config = configuration.override(configuration.Config(), overrides)
    interval = config.algo.update_interval
    assert config.forward_passes(interval, config.algo.updates) == forwards * interval
    assert config.forward_passes(interval, 0) == interval  # before the first update


def test_the_rate_agrees_with_a_plain_timing() -> None:
    """Within a factor of 5 of a plain timing: other programs may slow down either."""
    x, weight = torch.ones(4096, 256), torch.ones(256, 1024)
    times: list[float] = []
    for _ in range(30):
        start = time.perf_counter()
        torch.mm(x, weight)
        times.append(time.perf_counter() - start)
    plain = 2 * 4096 * 256 * 1024 / min(times)
    assert plain / 5 < matmul_rate(256, torch.float32, "cpu") < 5 * plain
