"""The job `check`, which prints the profile of data before anything is trained. It imports neither torch nor pandas."""

import json

from omegaconf import DictConfig, ListConfig

from distill.data.profile import print_profile, profile_data, rehearse_reading, suggest_command
from distill.errors import OptionError, UserError
from distill.jobs.overrides import refuse_other_options
from distill.readers.splits import Chosen
from distill.storage import mirror


def run_check(config: DictConfig) -> None:
    """Prints the profile of `data` with the columns `text` and `label`, or with guesses.

    Raises:
        UserError: for options that have no effect, files that cannot be read, and problems that stop a training.
    """
    refuse_other_options("check")
    if config.data is None:
        raise UserError("job=check has no data to check: add data=FILE, or data=DIR with train and dev")
    if not isinstance(config.json, bool):
        raise OptionError("json", config.json, "true or false")
    data = str(mirror.local_path(str(config.data)))
    given = Chosen(text=_read_names("text", config.text), label=_read_names("label", config.label))
    if len(given.text) > 2:
        raise OptionError("text", f"[{','.join(given.text)}]", "one column or the two of a pair")
    profile = rehearse_reading(profile_data(data, given), data)
    if config.json:
        command = None if profile.errors else ["python", "-m", "distill", *suggest_command(profile, data)]
        print(json.dumps({"data": data, **profile.record(), "command": command}, ensure_ascii=False, indent=2))
    else:
        print_profile(profile, data)
    if profile.errors:
        problems = "problem" if len(profile.errors) == 1 else "problems"
        raise UserError(f"a training on {data} would stop at {problems} {', '.join(map(str, profile.errors))}")


def _read_names(option: str, value: object) -> tuple[str, ...]:
    names = list(value) if isinstance(value, ListConfig) else [] if value is None else [value]
    if not all(isinstance(name, str | int) and not isinstance(name, bool) for name in names):
        raise OptionError(option, str(value), "the name of a column, or a list of names")
    return tuple(map(str, names))
