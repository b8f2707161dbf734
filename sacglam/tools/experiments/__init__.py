"""Many runs and one report: comparisons of configurations, and the paper's ablations.

Each run is a process of its own, started by the same command that a user would give. Nothing here loads torch.
"""
