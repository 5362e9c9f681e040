"""The chain of one run, from the plan to a measured bundle, without Hydra."""
