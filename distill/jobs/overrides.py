"""The options that a command was given, for jobs that read only some of them."""

from hydra.core.hydra_config import HydraConfig

from distill.errors import UserError


def refuse_other_options(job: str, read: tuple[str, ...], words: str | None = None) -> None:
    """Raises UserError for options of the command that a job does not read.

    Args:
        read: how the options begin that it reads.
        words: the same for the message.
    """
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    ignored = [option for option in given if not option.startswith(read)]
    if ignored:
        raise UserError(f"job={job} reads only {words or ', '.join(read)}: leave out {' '.join(ignored)}")
