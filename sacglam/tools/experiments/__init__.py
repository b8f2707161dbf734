"""Many runs and one report: comparisons of configurations, and the paper's ablations.

Each run is a separate process, started by the command that a user would give. Nothing here loads torch,
except to count the GPUs for parallel runs.
"""
