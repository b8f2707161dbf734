"""A search for learning rates and `replay.hindsight.share` with Optuna: eight trials, of which weak ones end early.

pip install optuna && python docs/examples/search.py
"""

import os

import optuna

import sacglam

STEPS = int(os.environ.get("STEPS", "1280"))
TRIALS = int(os.environ.get("TRIALS", "8"))


def objective(trial: optuna.Trial) -> float:
    """Greedy success of one run after training."""
    rate = trial.suggest_float("rate", 3e-4, 1e-2, log=True)
    share = trial.suggest_float("hindsight share", 0.2, 0.9)

    def report(metrics):
        if "eval_success/overall" in metrics:
            trial.report(metrics["eval_success/overall"], step=int(metrics["env_steps"]))
            return trial.should_prune()

    overrides = [
        f"algo.actor_lr={rate}",
        f"algo.critic_lr={rate}",
        f"replay.hindsight.share={share}",
        f"steps={STEPS}",
        "evaluation.every_steps=320",
        "evaluation.episodes=100",
        "evaluation.every_episodes=50",
    ]
    summary = sacglam.train(sacglam.load_config("quickstart", overrides), callback=report)
    if not summary["finished"]:
        raise optuna.TrialPruned
    return summary["success_after"]["overall"]


study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
study.optimize(objective, n_trials=TRIALS)
print(f"{study.best_value:.2f} with {study.best_params}")
