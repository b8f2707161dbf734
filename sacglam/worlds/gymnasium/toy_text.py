"""Describers of gymnasium's toy-text environments, whose states are numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.toy_text import CliffWalkingEnv, FrozenLakeEnv, TaxiEnv
from typing_extensions import override

from sacglam.worlds.gymnasium.describers import Describer


def cell(row: int, column: int) -> str:
    """The text of a cell; rows and columns count from 1."""
    return f"row {row + 1}, column {column + 1}"


_TILES = {b"S": "ice", b"F": "ice", b"H": "a hole", b"G": "the present", b"E": "the edge"}


class FrozenLake(Describer):
    """Goals are the cells of ice; the task is the cell with the present, and a hole ends the episode.

    The text also names the adjacent tiles: on slippery ice the best move is often the one away from a hole.
    """

    names = ("Go left", "Go down", "Go right", "Go up")

    @override
    def text(self, obs: Any, info: Mapping[str, Any]) -> str:
        (y, x), tiles = divmod(int(obs), self.env.ncol), np.pad(self.env.desc, 1, constant_values="E")
        near = [_TILES[tiles[y + dy, x + dx]] for dy, dx in ((1, 0), (2, 1), (1, 2), (0, 1))]
        return "You see {} left, {} down, {} right, {} up\nYou are at {}".format(*near, self.cell(obs))

    @override
    def goal(self, obs: Any, info: Mapping[str, Any]) -> str:
        return f"Reach {self.cell(self.env.desc.tobytes().index(b'G'))}"

    @override
    def goals(self) -> Sequence[str]:
        return [f"Reach {self.cell(state)}" for state, tile in enumerate(self.env.desc.ravel()) if tile == b"F"]

    @override
    def achieved(self, obs: Any, info: Mapping[str, Any]) -> Sequence[str]:
        return () if self.env.desc.ravel()[obs] == b"H" else [f"Reach {self.cell(obs)}"]

    def cell(self, state: int) -> str:
        """The cell with this number, row by row."""
        return cell(*divmod(int(state), self.env.desc.shape[1]))


class CliffWalking(FrozenLake):
    """Goals are the cells off the cliff; the task is the last one. A fall leads back to the start."""

    names = ("Go up", "Go right", "Go down", "Go left")

    @override
    def text(self, obs: Any, info: Mapping[str, Any]) -> str:
        return f"You are at {self.cell(obs)}"

    @override
    def goal(self, obs: Any, info: Mapping[str, Any]) -> str:
        return f"Reach {self.cell(self.env.nS - 1)}"

    @override
    def goals(self) -> Sequence[str]:
        return [f"Reach {self.cell(state)}" for state in range(self.env.start_state_index)]

    @override
    def achieved(self, obs: Any, info: Mapping[str, Any]) -> Sequence[str]:
        return [f"Reach {self.cell(obs)}"]

    @override
    def cell(self, state: int) -> str:
        return cell(*divmod(int(state), self.env.shape[1]))


class Taxi(Describer):
    """Goals are to pick the passenger up, and to bring them to a stand; the task is the stand that `reset` draws.

    The observation omits the destination: it is the goal, and hindsight substitutes others.
    """

    names = ("Go south", "Go north", "Go east", "Go west", "Pick up", "Drop off")

    @override
    def text(self, obs: Any, info: Mapping[str, Any]) -> str:
        row, column, passenger, _ = self.env.decode(obs)
        where = f"at {cell(*self.env.locs[passenger])}" if passenger < 4 else "in the taxi"
        return f"The taxi is at {cell(row, column)}. The passenger is {where}"

    @override
    def goal(self, obs: Any, info: Mapping[str, Any]) -> str:
        return f"Bring the passenger to {cell(*self.env.locs[self.env.decode(obs)[3]])}"

    @override
    def goals(self) -> Sequence[str]:
        return ["Pick up the passenger"]

    @override
    def achieved(self, obs: Any, info: Mapping[str, Any]) -> Sequence[str]:
        passenger = self.env.decode(obs)[2]
        at_a_stand = passenger < 4
        return [f"Bring the passenger to {cell(*self.env.locs[passenger])}" if at_a_stand else "Pick up the passenger"]


_DESCRIBERS: Mapping[type, type[Describer]] = {FrozenLakeEnv: FrozenLake, CliffWalkingEnv: CliffWalking, TaxiEnv: Taxi}


def describer_of(env: Any) -> type[Describer]:
    """The describer of an unwrapped environment for which no option names one."""
    return next((describer for kind, describer in _DESCRIBERS.items() if isinstance(env, kind)), Describer)


def described(id: str) -> bool:
    """Whether `id` is one of gymnasium's own environments with an included describer."""
    spec = gymnasium.registry.get(id)
    return spec is not None and spec.entry_point in {f"{kind.__module__}:{kind.__name__}" for kind in _DESCRIBERS}
