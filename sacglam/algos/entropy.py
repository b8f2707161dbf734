"""The entropy coefficient alpha, learned towards a target entropy (paper, Appendix C)."""

import math
from typing import Any

import torch

from sacglam.algos import math as equations


class EntropyCoefficient:
    """alpha > 0, learned through its logarithm by Adam towards a target entropy (paper, Appendix C)."""

    def __init__(self, init: float, lr: float) -> None:
        """`lr` 0 keeps alpha fixed."""
        self._log_alpha = torch.tensor(math.log(init), dtype=torch.float64, requires_grad=True)
        self._optimizer = torch.optim.Adam([self._log_alpha], lr=lr)

    @property
    def alpha(self) -> float:
        """The current coefficient."""
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
