"""An environment of sacglam's in verifiers 0.4: the model's reply is the action, each goal a task."""

import json
import os

import verifiers.v1 as vf
from websockets.asyncio.client import connect

__all__ = ["Goals", "Play"]
URL = os.environ.get("URL", "http://127.0.0.1:8000").replace("http", "ws", 1)


class Goal(vf.TaskData):
    reset: dict


class Goals(vf.Taskset[vf.Task[Goal], vf.TasksetConfig]):
    def load(self):
        for i in range(100):
            yield vf.Task(Goal(name=f"goal {i}", prompt=None, reset={"index": i, "seed": i}), self.config.task)


class PlayConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class Play(vf.Env[PlayConfig]):
    async def run(self, task, agents):
        async with connect(f"{URL}/ws") as server, agents.player.interaction(task) as interaction:

            async def ask(kind, data):
                await server.send(json.dumps({"type": kind, "data": data}))
                return json.loads(await server.recv())["data"]

            answer = await ask("reset", task.data.reset)
            while not answer["done"]:
                seen = answer["observation"]
                said = f"Goal: {seen['goal']}\n{seen['text']}\nAnswer with one of: {', '.join(seen['actions'])}"
                turn = await interaction.turn(said)
                if turn.terminated:
                    break
                answer = await ask("step", {"action": turn.last_reply.strip()})
        interaction.trace.record_reward("success", answer["reward"] or 0.0)
