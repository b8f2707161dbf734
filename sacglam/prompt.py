"""The only place where a goal, an observation and the steps before it become a prompt."""

from dataclasses import dataclass

from sacglam.config import PromptConfig
from sacglam.types import Observation, Past, Query, Window


@dataclass(frozen=True)
class Prompt:
    """Renders states by the settings of one agent."""

    settings: PromptConfig

    def __call__(self, goal: str, observation: Observation, past: Past = ()) -> Query:
        """The prompt of `observation` under `goal`, with the last `settings.history` steps of `past`."""
        settings = self.settings
        shown = past[max(0, len(past) - settings.history) :]
        prompt = settings.template.format(
            goal=goal,
            observation=observation.text,
            actions=", ".join(observation.actions),
            history="".join(settings.step.format(observation=text, action=action) for text, action in shown),
        )
        return Query(prompt, tuple(settings.before_action + action for action in observation.actions))

    def at(self, window: Window, t: int) -> Query:
        """The prompt of `window.observations[t]`."""
        return self(window.goal, window.observations[t], window.past(t, self.settings.history))


query = Prompt(PromptConfig())
"""The default prompt, which the built-in models were pre-trained on."""
