"""Requests per second and latency of `sacglam serve`.

    python -m benchmarks.serving RUN

Each client asks about random states of the run's environment, one after another, over its own connection.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks import common
from sacglam.agent import load_agent
from sacglam.collector import build_env
from sacglam.envs.base import TextEnv
from sacglam.tools.serving.server import Server


def states(env: TextEnv, count: int, rng: Random) -> list[bytes]:
    """Requests about states of random play."""
    goals, found = env.goals("train"), []
    while len(found) < count:
        goal = rng.choice(goals)
        state = env.reset(goal, rng.randrange(2**31))
        for _ in range(8):
            asked = {"goal": goal, "observation": state.text, "actions": list(state.actions)}
            found.append(json.dumps(asked).encode())
            step = env.step(rng.randrange(len(state.actions)))
            if step.terminated or step.truncated:
                break
            state = step.observation
    return found[:count]


def measure(address: tuple[str, int], asked: list[bytes], clients: int, seconds: float) -> dict[str, Any]:
    """So many clients for so long; latencies in milliseconds."""
    latencies: list[list[float]] = [[] for _ in range(clients)]
    end = time.monotonic() + seconds

    def client(number: int) -> None:
        connection, rng = http.client.HTTPConnection(*address), Random(number)
        while (start := time.monotonic()) < end:
            connection.request("POST", "/api/act", rng.choice(asked), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
            latencies[number].append(1e3 * (time.monotonic() - start))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = np.concatenate(latencies)
    p50, p95 = np.percentile(found, [50, 95])
    return {
        "clients": clients,
        "requests": len(found),
        "requests_per_second": round(len(found) / seconds, 2),
        "latency_ms": {"median": round(float(p50), 2), "p95": round(float(p95), 2)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    agent = load_agent(options.run, "cpu", trusted=True)
    asked = states(build_env(agent.config), 512, Random(0))
    with Server(0, "benchmark", agent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = (str(server.server_address[0]), int(server.server_address[1]))
        measure(address, asked, 1, min(1.0, options.seconds))  # warm-up
        rows = [measure(address, asked, clients, options.seconds) for clients in options.clients]
        server.shutdown()
    machine = common.machine("cpu", agent.config.threads) | {"load": os.getloadavg()[0]}
    common.emit([{**row, **machine} for row in rows])


if __name__ == "__main__":
    main()
