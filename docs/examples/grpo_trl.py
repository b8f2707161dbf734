"""GRPO with TRL in an environment of sacglam's: the model acts by calling a tool."""

import os

import torch
from datasets import Dataset
from openenv.core import GenericEnvClient
from trl import GRPOConfig, GRPOTrainer

URL, MODEL = os.environ.get("URL", "http://127.0.0.1:8000"), os.environ.get("MODEL", "Qwen/Qwen3-0.6B")


class Episode:
    def __init__(self):
        self._client = GenericEnvClient(URL).sync()

    def reset(self, index, seed, **others) -> str:
        self._answer = self._client.reset(split="train", index=index, seed=seed)
        return f"Goal: {self._answer.observation['goal']}\n{self._said()}"

    def act(self, action: str) -> str:
        """Take an action and see what happens.

        Args:
            action: One of the possible actions, word for word.
        """
        if not self._answer.done:
            self._answer = self._client.step({"action": action})
        return self._said()

    def get_reward(self) -> float:
        return self._answer.reward or 0.0

    def _said(self):
        seen = self._answer.observation
        return "It is over." if self._answer.done else f"{seen['text']}\nPossible actions: {', '.join(seen['actions'])}"


prompt = [{"role": "user", "content": "Achieve the goal by calling act."}]
rows = Dataset.from_list([{"prompt": prompt, "index": i % 182, "seed": i} for i in range(1000)])
config = GRPOConfig("runs/trl", max_steps=int(os.environ.get("STEPS", "200")), use_cpu=not torch.cuda.is_available())
GRPOTrainer(MODEL, args=config, train_dataset=rows, environment_factory=Episode).train()
