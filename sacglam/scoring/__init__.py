"""Where the rollout gets the policy from."""
