"""Many trainings and what they say together: comparisons of configurations, and the paper's ablations.

Trainings run in processes of their own, by the same command as a person's. Nothing here loads torch.
"""
