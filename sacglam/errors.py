"""Errors for the user: each says what was expected, what was found and what to do."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class SacglamError(Exception):
    """Base of the errors that the command line prints as a message, not a traceback."""


class ConfigError(SacglamError):
    """The configuration is wrong: an unknown key, a value out of range, two settings that contradict each other."""


class UntrustedError(ConfigError):
    """A run's folder names code that does not come with sacglam, and the user has not vouched for it (`--trust`)."""


class EnvironmentContractError(SacglamError):
    """An environment broke its contract, e.g. an empty or duplicate action list."""


class DemonstrationError(SacglamError):
    """A file of demonstrations cannot be read, or holds something other than episodes of the environment."""


class ModelError(SacglamError):
    """A model cannot be found, loaded or packed, or a text does not fit it."""


class DivergenceError(SacglamError):
    """A loss or gradient is not finite. Earlier checkpoints are unaffected."""


class CheckpointError(SacglamError):
    """A checkpoint is missing, incomplete, corrupted or could not be written."""


class OutOfMemory(SacglamError):
    """A GPU or the machine has too little memory."""


class RunDirectoryError(SacglamError):
    """A folder is not empty, holds no run where one is needed, or cannot be read or written."""


class EngineError(SacglamError):
    """A scoring engine cannot start, dies or hangs too often, or gives no usable score."""


class EngineBroken(EngineError):
    """An engine failed, but a new one may work."""


class LearnerError(SacglamError):
    """A learner rank died; earlier checkpoints are unaffected."""


class ParityError(SacglamError):
    """An engine's policy differs from the learner's."""


class TrackingError(SacglamError):
    """A tracker is not installed, or what it writes to is locked, full or broken; the run's own files are intact."""


_OUT_OF_MEMORY = (
    "{where} has too little memory: {error}\nUse smaller passes (algo.micro_batch_size; the actions of one state are "
    "never split), recompute activations (model.gradient_checkpointing=true), or store the base model in fewer bits "
    "(model.dtype=bfloat16, model.quantize=nf4); the replay buffer (replay.capacity) is in the machine's RAM. `sacglam "
    "train --dry-run` predicts the memory of all other parts. A run with a checkpoint also resumes elsewhere: sacglam "
    "train --resume RUN --gpus N"
)


_MAX_TRACE = 4000  # characters


def as_text(trace: Iterable[str]) -> str:
    """The lines of a traceback for a message: what can be printed of them, and only the end of a long one."""
    said = "".join(trace).rstrip().encode(errors="backslashreplace").decode()
    return f"...{said[-_MAX_TRACE:]}" if len(said) > _MAX_TRACE else said


@contextmanager
def memory_explained() -> Iterator[None]:
    """Turn a failure to allocate memory, on a GPU or a CPU, into an `OutOfMemory` that says what to lower."""
    try:
        yield
    except Exception as error:
        on_cpu = isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error)
        if not on_cpu and type(error).__name__ != "OutOfMemoryError":  # torch's, by name: torch may not be imported
            raise
        where = "the machine" if on_cpu else "the GPU"
        raise OutOfMemory(_OUT_OF_MEMORY.format(where=where, error=error or "a file does not fit in it")) from error


@contextmanager
def write_explained(file: Path) -> Iterator[None]:
    """Turn a failure to write `file`, e.g. on a full disk, into a `RunDirectoryError` that says so."""
    try:
        yield
    except OSError as error:
        raise RunDirectoryError(
            f"cannot write {file}: {error}. Fix that and try again (a run continues with --resume)"
        ) from error
