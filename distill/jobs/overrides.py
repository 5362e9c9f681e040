"""The options that a command was given, for jobs that read only some of them."""

from hydra.core.hydra_config import HydraConfig

from distill.errors import UserError
from distill.jobs.registry import find_job


def refuse_other_options(name: str) -> None:
    """Raises UserError for options of the command that a job does not read."""
    job = find_job(name)
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    ignored = [option for option in given if not option.startswith(job.reads)]
    if ignored:
        raise UserError(f"job={name} reads only {job.words or ', '.join(job.reads)}: leave out {' '.join(ignored)}")
