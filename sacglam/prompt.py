"""The only place where a goal, an observation and the steps before it become the text that a model reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sacglam.config.sections import PromptConfig
from sacglam.errors import ModelError
from sacglam.types import Episode, Observation, Past, Query, Window


@dataclass(frozen=True)
class Prompt:
    """Renders states with the settings of one agent."""

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

    def transition(self, episode: Episode, t: int) -> str:
        """What `episode.decisions[t]` led to, as text."""
        before = self.settings.step.format(observation=episode.observation(t).text, action=episode.action(t))
        return f"{before}{episode.observation(t + 1).text}\nGoal:"

    def judged(self, transition: str, goals: Sequence[str]) -> Query:
        """The query that asks of each goal whether a transition achieved it; goals take the place of actions."""
        before = "" if self.settings.chat else " "  # the transition ends in "Goal:"
        return Query(transition, tuple(before + goal for goal in goals))

    def in_chat(self, query: Query, tokenizer: Any) -> Query:
        """With `settings.chat`, puts the prompt as a user's message into the chat template of a transformers tokenizer.

        Raises:
            ModelError: the tokenizer has no template, or a broken one.
        """
        if not self.settings.chat:
            return query
        message = [{"role": "user", "content": query.prompt}]
        try:
            return Query(
                tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True), query.actions
            )
        except Exception as error:  # templates are programs
            raise ModelError(
                f"prompt.chat needs a chat template, and this tokenizer's cannot be used: {error}"
            ) from error


query = Prompt(PromptConfig())
"""The default prompt, which the built-in models were pre-trained on."""
