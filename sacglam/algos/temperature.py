"""The entropy coefficient alpha, learned towards a target entropy (paper, Appendix C)."""

import math
import re
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator

from sacglam.algos import math as equations
from sacglam.config.section import NonNegativeFloat, PositiveFloat, Section


def _target_entropy(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"(\d{1,2}(\.\d{1,3})?|100)%", value):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise ValueError("expected a number of nats, or a percentage such as 22%")


class AlphaConfig(Section):
    """The entropy coefficient; defaults are those of the paper's SAC + HER (Table 3)."""

    init: PositiveFloat = 0.05
    """Initial value."""
    target_entropy: Annotated[float | str, BeforeValidator(_target_entropy)] = 0.01
    """Mean policy entropy at which alpha stays constant: nats, or as `22%` a share of the random policy's entropy.

    A share falls with the learning rates, if they decay."""
    lr: NonNegativeFloat = 2e-3
    """Adam's learning rate on log alpha; 0 keeps alpha fixed."""

    def target(self, random: float, decay: float = 1.0) -> float:
        """The target entropy in nats, where the random policy's is `random`; a share of that is scaled by `decay`."""
        value = self.target_entropy
        return float(value.rstrip("%")) / 100 * random * decay if isinstance(value, str) else value


class Temperature:
    """alpha > 0, learned through its logarithm by Adam towards a target entropy (paper, Appendix C)."""

    def __init__(self, init: float, lr: float) -> None:
        """`lr` 0 keeps alpha fixed."""
        self._log_alpha = torch.tensor(math.log(init), dtype=torch.float64, requires_grad=True)
        self._optimizer = torch.optim.Adam([self._log_alpha], lr=lr)

    @property
    def alpha(self) -> float:
        """The coefficient now."""
        return float(self._log_alpha.detach().exp())

    def update(self, entropy: float, target: float) -> None:
        """One step, given the mean policy entropy of a batch and its target, in nats."""
        self._optimizer.zero_grad()
        equations.alpha_loss(self._log_alpha, entropy, target).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def state(self) -> dict[str, Any]:
        """log alpha and Adam's moments as plain numbers."""
        moments = self._optimizer.state.get(self._log_alpha, {})
        return {"log_alpha": float(self._log_alpha.detach()), "adam": {k: float(v) for k, v in moments.items()}}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state()` gave."""
        if set(state["adam"]) not in (set(), {"step", "exp_avg", "exp_avg_sq"}):
            raise ValueError(f"expected all of Adam's moments of log alpha, got {state['adam']}")
        with torch.no_grad():
            self._log_alpha.fill_(state["log_alpha"])
        self._optimizer.state.clear()
        if state["adam"]:
            dtypes = {"step": torch.float32}
            self._optimizer.state[self._log_alpha] = {
                k: torch.tensor(v, dtype=dtypes.get(k, torch.float64)) for k, v in state["adam"].items()
            }
