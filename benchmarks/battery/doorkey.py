"""Minigrid's DoorKey as text: how far ahead and to which side of the agent each thing is."""

from sacglam.worlds.gymnasium import Describer


class DoorKey(Describer):
    names = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "wait")

    def text(self, obs, info):
        front = self.env.grid.get(*self.env.front_pos)
        return "\n".join(
            [
                *(f"The {_name(thing)} is {self._way(x, y)}" for thing, x, y in self._things()),
                f"In front of you is {'nothing' if front is None else 'the ' + _name(front)}",
                f"You carry {'the key' if self.env.carrying else 'nothing'}",
            ]
        )

    def goals(self):
        return ["pick up the key", "open the door"]

    def achieved(self, obs, info):
        here = self.env.grid.get(*self.env.agent_pos)
        is_open = any(thing.type == "door" and thing.is_open for thing, _, _ in self._things())
        at_goal = here is not None and here.type == "goal"
        held = {"pick up the key": self.env.carrying, "open the door": is_open, self.env.mission: at_goal}
        return [goal for goal, holds in held.items() if holds]

    def _things(self):
        grid = self.env.grid
        cells = [(grid.get(x, y), x, y) for y in range(grid.height) for x in range(grid.width)]
        return [cell for cell in cells if cell[0] is not None and cell[0].type != "wall"]

    def _way(self, x, y):
        (ax, ay), (dx, dy) = self.env.agent_pos, self.env.dir_vec
        ahead, right = (x - ax) * dx + (y - ay) * dy, (y - ay) * dx - (x - ax) * dy
        sides = (ahead, "ahead", "behind"), (right, "right", "left")
        steps = [f"{abs(n)} {plus if n > 0 else minus}" for n, plus, minus in sides if n]
        return " and ".join(steps) or "here"


def _name(thing):
    return f"{'open' if thing.is_open else 'locked'} door" if thing.type == "door" else thing.type
