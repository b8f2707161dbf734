"""Describers of gymnasium's toy text environments, whose states are numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium.envs.toy_text import CliffWalkingEnv, FrozenLakeEnv, TaxiEnv
from typing_extensions import override

from sacglam.envs.gymnasium.describers import Describer


def cell(row: int, column: int) -> str:
    """A cell in words, counted from 1."""
    return f"row {row + 1}, column {column + 1}"


class FrozenLake(Describer):
    """Goals are the cells of ice; the task is the cell with the present, and a hole ends the episode."""

    names = ("Go left", "Go down", "Go right", "Go up")

    @override
    def text(self, obs: Any, info: Mapping[str, Any]) -> str:
        return f"You are at {self._cell(obs)}"

    @override
    def goal(self, obs: Any, info: Mapping[str, Any]) -> str:
        return f"Reach {self._cell(self.env.desc.tobytes().index(b'G'))}"

    @override
    def goals(self) -> Sequence[str]:
        return [f"Reach {self._cell(state)}" for state, tile in enumerate(self.env.desc.ravel()) if tile == b"F"]

    @override
    def achieved(self, obs: Any, info: Mapping[str, Any]) -> Sequence[str]:
        return () if self.env.desc.ravel()[obs] == b"H" else [f"Reach {self._cell(obs)}"]

    def _cell(self, state: int) -> str:
        return cell(*divmod(int(state), self.env.ncol))


class CliffWalking(Describer):
    """Goals are the cells off the cliff; the task is the last one. A fall leads back to the start."""

    names = ("Go up", "Go right", "Go down", "Go left")

    @override
    def text(self, obs: Any, info: Mapping[str, Any]) -> str:
        return f"You are at {self._cell(obs)}"

    @override
    def goal(self, obs: Any, info: Mapping[str, Any]) -> str:
        return f"Reach {self._cell(self.env.nS - 1)}"

    @override
    def goals(self) -> Sequence[str]:
        return [f"Reach {self._cell(state)}" for state in range(self.env.start_state_index)]

    @override
    def achieved(self, obs: Any, info: Mapping[str, Any]) -> Sequence[str]:
        return [f"Reach {self._cell(obs)}"]

    def _cell(self, state: int) -> str:
        return cell(*divmod(int(state), self.env.shape[1]))


class Taxi(Describer):
    """Goals are to pick the passenger up, and to bring them to a stand; the task is the stand that `reset` draws.

    The observation leaves the destination out: it is the goal, and hindsight gives others.
    """

    names = ("Go south", "Go north", "Go east", "Go west", "Pick up", "Drop off")

    @override
    def text(self, obs: Any, info: Mapping[str, Any]) -> str:
        row, column, passenger, _ = self.env.decode(obs)
        where = "in the taxi" if passenger == len(self.env.locs) else f"at {cell(*self.env.locs[passenger])}"
        return f"The taxi is at {cell(row, column)}. The passenger is {where}"

    @override
    def goal(self, obs: Any, info: Mapping[str, Any]) -> str:
        return self._bring(self.env.decode(obs)[3])

    @override
    def goals(self) -> Sequence[str]:
        return ["Pick up the passenger"]

    @override
    def achieved(self, obs: Any, info: Mapping[str, Any]) -> Sequence[str]:
        passenger = self.env.decode(obs)[2]
        return [self._bring(passenger) if passenger < len(self.env.locs) else "Pick up the passenger"]

    def _bring(self, stand: int) -> str:
        return f"Bring the passenger to {cell(*self.env.locs[stand])}"


SHIPPED: Mapping[type, type[Describer]] = {FrozenLakeEnv: FrozenLake, CliffWalkingEnv: CliffWalking, TaxiEnv: Taxi}
