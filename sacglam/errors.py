"""Errors for the user: each says what was expected, what was found and what to do."""


class SacglamError(Exception):
    """Base of the errors that the command line prints as a message, not a traceback."""


class ConfigError(SacglamError):
    """The configuration is wrong: an unknown key, a value out of range, two settings that contradict."""


class EnvironmentContractError(SacglamError):
    """An environment broke its contract, e.g. an empty or duplicate action list."""


class ModelError(SacglamError):
    """A model cannot be found, loaded or packed, or a text does not fit it."""


class DivergenceError(SacglamError):
    """A loss or gradient is not finite. The last good checkpoint is kept."""


class CheckpointError(SacglamError):
    """A checkpoint is missing, incomplete, corrupted or could not be written."""


class RunDirectoryError(SacglamError):
    """A run directory already contains a run, or contains none where one is needed."""


class EngineError(SacglamError):
    """A scoring engine cannot start, died or hung too often, or gives no usable score."""


class EngineBroken(EngineError):
    """An engine failed in a way that a replacement may not."""


class LearnerError(SacglamError):
    """A learner rank died; the last checkpoint is intact."""


class ProfileError(SacglamError):
    """A profile was interrupted, or its configuration cannot be profiled."""


class ParityError(SacglamError):
    """An engine's policy differs from the learner's."""


class TrackingError(SacglamError):
    """Aim is not installed, or its repository is locked, full or broken; the run's own files are intact."""
