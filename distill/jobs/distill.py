"""The job `distill`, the whole chain from a teacher to a measured bundle."""

from omegaconf import DictConfig

from distill.chain import distillation as chain
from distill.jobs import build
from distill.records.record import Run


def run_distill(config: DictConfig, run: Run) -> None:
    """Distils the configured student in the run's directory."""
    # Checks the options before reading any data.
    plan = build.plan(config)
    chain.distill(build.source(config), build.student(config), plan, run)
