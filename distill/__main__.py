"""The command `python -m distill`: composes the configuration, runs a job, and reports errors in one line."""

import contextlib
import gc
import importlib
import importlib.util
import io
import itertools
import os
import re
import runpy
import sys
import traceback
import uuid
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from distill import __version__
from distill.core.errors import (
    DistillError,
    Failure,
    Interrupted,
    OptionError,
    Pruned,
    UserError,
    config_directory,
    describe_refusal,
    find_cause,
    find_texts,
    first_line,
    forget_interrupt,
    install_command,
    suggest,
)
from distill.core.files import is_full_disk
from distill.core.storage import is_url, local_path
from distill.jobs import command_line
from distill.jobs.command_line import ADDED, check_slips, find_job

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from omegaconf import DictConfig


EXTRA = (
    "hydra",
    "omegaconf",
    "pydantic",
    "torch",
    "transformers",
    "lightning",
    "datasets",
    "onnx",
    "onnxscript",
    "sklearn",
    "scipy",
    "rich",
    "jinja2",
    "matplotlib",
    "markdown_it",
)
# Launchers of other packages, and the extras that install them.
LAUNCHERS = {"joblib": "joblib", "submitit_local": "slurm", "submitit_slurm": "slurm"}
SERVICE_COMMANDS = ("submit", "watch", "fetch", "cancel", "jobs")
AUTO = "+student=auto"  # Trains several students, and recommends one.
AUTO_OPTIONS = ("auto.tolerance", "auto.ms", "auto.mb", "auto.minutes")
# Options of Hydra with a value, and the one that may have a value.
VALUED = (
    "--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd",
    "--experimental-rerun",
)  # fmt: skip
INFO = ("--info", "-i")


def main() -> int:
    """Runs the command and returns its exit code: 0, 2 (user error), 3 (numerical error) or 130 (Ctrl-C).

    The commands that ask a service have those of `distill.client`.
    """
    if sys.argv[1:] == ["--version"]:
        print(f"distill {__version__}")
        return 0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # A label may have characters that the locale lacks.
            stream.reconfigure(errors="backslashreplace")
    if sys.argv[1:2] and sys.argv[1] in SERVICE_COMMANDS:
        return _ask_service(sys.argv[1:])
    hydra_full_error = os.environ.get("HYDRA_FULL_ERROR")
    show_traceback = hydra_full_error == "1"
    store = None
    launched = "RANK" in os.environ or "SLURM_STEP_NUM_TASKS" in os.environ
    try:
        refuse_passwords((_option_name(argument), argument) for argument in sys.argv[1:])
        given = sys.argv[1:]
        sys.argv[1:] = put_options_first(choose_automatically(given))
        sys.argv[1:] = [copy_sweep(argument) for given in sys.argv[1:] for argument in expand_tasks(given)]
        _check_installation()
        check_slips(given, VALUED, _names)
        if launched:
            if os.environ.get("RANK", os.environ.get("SLURM_PROCID")) != "0":
                os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # Only rank 0 prints.
            from distill.training import processes

            store = processes.connect_ranks()
            if store is not None and processes.launched_rank() > 0:
                processes.serve_calls(store)
                return 0
        # Otherwise Hydra would print errors itself and exit.
        os.environ["HYDRA_FULL_ERROR"] = "1"
        return _run(show_traceback)
    except DistillError as error:
        if show_traceback:
            raise
        return _print_error(error)
    except KeyboardInterrupt:
        return _print_error(Interrupted("interrupted before anything began"))
    finally:
        if store is not None:
            processes.release_ranks(store)
        if hydra_full_error is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)
        else:
            os.environ["HYDRA_FULL_ERROR"] = hydra_full_error


def _ask_service(arguments: "Sequence[str]") -> int:
    """Runs a command of the client of a service, which needs nothing of what a run needs."""
    from distill.client import main

    try:
        return main(arguments)
    except DistillError as error:
        return _print_error(error)
    except KeyboardInterrupt:
        return _print_error(Interrupted("interrupted"))


def put_options_first(arguments: "Sequence[str]") -> list[str]:
    """Returns the options of Hydra before the overrides, because its parser takes none between two of these."""
    options: list[str] = []
    overrides: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument in VALUED:
            options += [argument, *itertools.islice(remaining, 1)]
        else:
            (options if argument.startswith("-") and argument not in INFO else overrides).append(argument)
    return options + overrides


def choose_automatically(arguments: "Sequence[str]") -> list[str]:
    """Returns the sweep over students that `+student=auto` is, whose options begin with `auto.`.

    Raises:
        UserError: for an option that it has not.
    """
    if AUTO not in arguments:
        return list(arguments)
    for name in (_option_name(argument) for argument in arguments if argument.startswith("auto.")):
        if name not in AUTO_OPTIONS:
            raise UserError(f"there is no option {name}{suggest(name, AUTO_OPTIONS)}")
    options = (re.sub(r"^auto\.", "hydra.sweeper.", argument) for argument in arguments if argument != AUTO)
    return ["--multirun", "hydra/sweeper=auto", *options]


def expand_tasks(argument: str) -> list[str]:
    """Returns `task.tasks=[sst2,mrpc]` as overrides that put the YAML of each task below `task.tasks`.

    The options of a task are then `task.tasks.mrpc.data_dir=DIR`, and Hydra reports what is wrong with them.
    """
    names = re.fullmatch(r"task\.tasks=\[([\w/, -]*)\]", argument)
    if names is None:
        return [argument]
    return [f"+task@task.tasks.{name.strip()}={name.strip()}" for name in names.group(1).split(",") if name.strip()]


def refuse_passwords(options: "Iterable[tuple[str, str]]") -> None:
    """Raises UserError for an option of a URL with a password, given by its name and its value."""
    for name, value in options:
        if refusal := describe_refusal(name, value):
            raise UserError(refusal)


def _option_name(argument: str) -> str:
    return argument.lstrip("+~").partition("=")[0]


def copy_sweep(argument: str) -> str:
    """Returns `hydra.sweep.dir=URL` with the directory that is its copy, because Hydra writes there itself."""
    name, _, place = argument.partition("=")
    return f"{name}={local_path(place)}" if name == "hydra.sweep.dir" and is_url(place) else argument


def _run(show_traceback: bool) -> int:
    import hydra
    from hydra._internal.utils import get_args_parser
    from hydra.core.plugins import Plugins
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import MarkedYAMLError

    Plugins.instance()  # It loads the module of the basic sweeper again, so that ours is defined later.
    from distill.jobs.command_line import quote_overrides
    from distill.jobs.optuna_sweeper import register_plugins

    _, unknown = get_args_parser().parse_known_args()
    if unknown:
        raise UserError(f"there is no option {unknown[0]}: set options with key=value, and see --help")
    register_resolvers()
    register_plugins()
    job = JobRunner(show_traceback)  # It records the command without our quotes.
    sys.argv[1:] = quote_overrides(sys.argv[1:], VALUED)
    run = hydra.main(config_path=str(config_directory()), config_name="config", version_base="1.3")(job)
    try:
        run()
    except (HydraException, OmegaConfBaseException, MarkedYAMLError) as error:
        if show_traceback:
            raise
        return _print_error(_translate(error))
    return max(job.exit_codes)


class JobRunner:
    """Runs each configuration of a command, in this process or in one of a launcher, and collects the exit codes."""

    def __init__(self, show_traceback: bool) -> None:
        self.show_traceback = show_traceback
        self.exit_codes = [0]
        self._command = list(sys.argv)
        self._sweep = uuid.uuid4().hex
        self._in_launcher = self._tolerates = False

    @contextlib.contextmanager
    def tolerating(self) -> "Iterator[None]":
        """Leaves errors of runs, which are no errors of the command, to the sweeper."""
        self._tolerates = True
        try:
            yield
        finally:
            self._tolerates = False

    def __setstate__(self, state: dict[str, object]) -> None:
        """Prepares another process, to which a launcher has sent this job."""
        vars(self).update(state, _in_launcher=True)
        sys.argv = list(self._command)
        command_line.use_allotted_cores()
        register_resolvers()

    def __call__(self, config: "DictConfig") -> Path | Failure | None:
        """Runs the job of a configuration; returns its run directory, or the error of a run in another process."""
        sys.argv = list(self._command)
        from hydra.core.hydra_config import HydraConfig
        from hydra.errors import HydraException
        from hydra.types import RunMode
        from omegaconf.errors import OmegaConfBaseException

        hydra_config = HydraConfig.get()
        number = hydra_config.job.num if hydra_config.mode == RunMode.MULTIRUN else 0
        try:
            return _run_config(config, launch=f"{self._sweep}-{number}", shows_stages=not self._in_launcher)
        except Pruned as pruned:
            print(f"Pruned   {pruned}")
            return Failure(pruned.exit_code, str(pruned), is_reported=True) if self._tolerates else None
        except (DistillError, HydraException, OmegaConfBaseException) as error:
            if self.show_traceback:
                raise
            return self._report(_translate(error, config))
        except Exception as error:
            if self.show_traceback or not (is_full_disk(error) or self._in_launcher):
                raise
            if is_full_disk(error):
                return self._report(_disk_full_error(config))
            traceback.print_exc()
            return Failure(DistillError.exit_code, f"{type(error).__name__}: {first_line(error)}")

    def _report(self, error: DistillError) -> Failure:
        """Returns the error of a run, and prints that of one in this process."""
        if self._tolerates and isinstance(error, UserError):
            return Failure(error.exit_code, str(error), is_reported=True)
        if self._in_launcher and not (isinstance(error, Interrupted) and command_line.in_slurm_job()):
            return Failure(error.exit_code, str(error))
        self.exit_codes.append(_print_error(error))
        if isinstance(error, Interrupted):  # Ends a sweep, or a job of SLURM, which starts it again or does not.
            sys.exit(error.exit_code)
        return Failure(error.exit_code, str(error), is_reported=True)

    def collect(self, failures: "Iterable[tuple[str, Failure]]") -> None:
        """Prints the errors of runs in other processes, each with the options of its run."""
        for options, failure in failures:
            if failure.is_reported:
                continue
            print(f"error: {failure.message} ({options})", file=sys.stderr)
            self.exit_codes.append(failure.exit_code)


def register_resolvers() -> None:
    """Makes the functions known that a YAML calls as `${local_path:PATH}` and `${complement:SHARE}`."""
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("local_path", lambda place: str(local_path(place)), replace=True)
    OmegaConf.register_new_resolver("complement", lambda share: round(1 - share, 12), replace=True)


def _run_config(config: "DictConfig", *, launch: str, shows_stages: bool) -> Path | None:
    """Runs the job of a configuration; returns the directory of its run, which a sweeper reads."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    refuse_passwords(find_texts(OmegaConf.to_container(config, resolve=True)))
    check_added(config, HydraConfig.get().overrides.task)
    if config.trust is not None and not _opens_a_run(config):
        raise UserError("trust= is for resume=DIR and job=benchmark, which open runs of others: leave it out")
    if config.resume and config.resume is not True:
        _check_resume_alone()
    elif not (job := find_job(config.job.name)).creates_run:
        job.load()(config)
        return None
    else:
        for group in ("teacher", "student"):
            if OmegaConf.is_missing(config, group) and (group == "teacher" or group in job.reads):
                raise UserError(f"no {group} chosen: add +{group}=NAME, one of {', '.join(_names(group))}")
    _announce(config)
    from distill.core.console import stages

    if shows_stages:
        stages.start(local_path(config.cache_dir))
    try:
        # A run of a sweep leaves a record of what was wrong, and others have imported torch.
        if not config.resume and HydraConfig.get().mode != RunMode.MULTIRUN:
            from distill.jobs.preflight import check_early

            check_early(config, HydraConfig.get().overrides.task)
        is_alone = config.dry_run and HydraConfig.get().mode != RunMode.MULTIRUN  # No training follows.
        with _without_optional() if is_alone else nullcontext():
            _import_jobs()
        from distill.jobs.execution import run_job

        return run_job(config, launch=launch)
    finally:
        stages.stop()


@contextmanager
def _without_optional() -> "Iterator[None]":
    """Keeps libraries from importing scipy and matplotlib, which takes a second, and which no dry run needs.

    torchmetrics, which Lightning imports, draws with them, and losses for images of transformers call scipy.
    """
    from unittest.mock import patch

    from lightning_utilities.core import imports
    from transformers import utils

    is_found, is_met, hidden = imports.package_available, imports.RequirementCache.__bool__, ("scipy", "matplotlib")

    def is_installed(cache: imports.RequirementCache) -> bool:
        return cache.requirement not in hidden and is_met(cache)

    with (
        patch.object(imports, "package_available", lambda name: name not in hidden and is_found(name)),
        patch.object(imports.RequirementCache, "__bool__", is_installed),
        patch.object(utils, "is_scipy_available", lambda: False),
    ):
        yield


def _import_jobs() -> None:
    """Imports what runs a job without a search for garbage, a fifth of the time, and leaves it out of later ones.

    Once alone, because what the run before has left, in a sweep, must be found.
    """
    if "distill.jobs.execution" in sys.modules:
        return
    gc.disable()
    try:
        importlib.import_module("distill.jobs.execution")
        gc.freeze()
    finally:
        gc.enable()


def _announce(config: "DictConfig") -> None:
    """Prints what the command is about to do, before the seconds in which its packages are imported."""
    from omegaconf import OmegaConf

    if config.resume and config.resume is not True:
        print(f"Resume   {config.resume}", flush=True)
        return
    groups = ("task", "teacher", *(["student"] if "student" in find_job(config.job.name).reads else []))
    names = {group: OmegaConf.select(config, f"{group}.name") for group in groups}
    named = ", ".join(f"{group} {name}" for group, name in names.items() if name is not None)
    print(f"Job      {config.job.name}: {named}", flush=True)


def _opens_a_run(config: "DictConfig") -> bool:
    """Returns whether the command reads the configuration of an earlier run."""
    return config.job.name == "benchmark" or bool(config.resume and config.resume is not True)


def check_added(config: "DictConfig", options: "Iterable[str]") -> None:
    """Raises UserError for `+name=...` where the configuration has no such name, which nothing would read."""
    from omegaconf import OmegaConf

    groups = [path.name for path in config_directory().iterdir() if path.is_dir()]
    known = sorted({*groups, *map(str, OmegaConf.load(config_directory() / "config.yaml"))} - {"defaults", "hydra"})
    for given in options:
        name = given.lstrip("+").partition("=")[0].partition(".")[0].partition("@")[0]
        if given.startswith("+") and name in config and name not in known:
            raise UserError(f"there is no option {name}{suggest(name, known)}")


def _check_resume_alone() -> None:
    """Raises UserError for options besides resume=DIR and trust, because a resumed run has its own configuration."""
    from hydra.core.hydra_config import HydraConfig

    others = [option for option in HydraConfig.get().overrides.task if not option.startswith(("resume=", "trust="))]
    if others:
        raise UserError(f"resume=DIR goes on with the options of that run: leave out {' '.join(others)}")


def _check_installation() -> None:
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"{', '.join(missing)} not installed: {install_command('train')} has all that training needs")


def _names(group: str) -> list[str]:
    from hydra.core.global_hydra import GlobalHydra

    if GlobalHydra.instance().is_initialized():
        return sorted(GlobalHydra.instance().config_loader().get_group_options(group))
    directories = [config_directory(), *_own_directories()]
    return sorted({path.stem for directory in directories for path in (directory / group).glob("*.yaml")})


def _own_directories() -> list[Path]:
    """Returns the directory of --config-dir, in which a user has YAML files."""
    options = ("--config-dir", "-cd")
    values = [value for name, value in itertools.pairwise(sys.argv) if name in options]
    values += [value for name, _, value in (argument.partition("=") for argument in sys.argv) if name in options]
    return [Path(value).absolute() for value in values if value]


def _translate(error: Exception, config: "DictConfig | None" = None) -> DistillError:
    """Returns the error as a DistillError with a message of one line."""
    from hydra.errors import MissingConfigException
    from yaml import MarkedYAMLError

    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark
        return UserError(f"{error.problem} in {mark.name}, line {mark.line + 1}" if mark else first_line(error))
    root = find_cause(error)
    text = str(error)
    location = re.search(r"full_key: (\S+)", text)
    if isinstance(root, OptionError) and location:
        return _resolve_reference(root.with_prefix(location.group(1)), config)
    if isinstance(root, DistillError):
        return root
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        if group == "hydra/launcher" and name in LAUNCHERS:
            return UserError(f"{group}={name} is not installed: {install_command(LAUNCHERS[name])}")
        return UserError(f"there is no {group or 'configuration'} {name}{suggest(name, _names(group))}")
    twice = re.search(r"Multiple values for (\S+)\. To override a value use 'override \S+: (\S+)'", text)
    if twice:
        group, choice = twice.groups()
        advice = "choose one" if group in ADDED else f"type {group}={choice} without its plus, because it has a default"
        return UserError(f"got more than one {group}: {advice}")
    key = re.search(r"Could not override '([^']*)'", text)
    if key:
        return UserError(_unknown_option_message(key.group(1).partition("@")[0]))
    line = first_line(root)
    return UserError(f"{location.group(1)}: {line}" if location and location.group(1) not in line else line)


def _resolve_reference(error: OptionError, config: "DictConfig | None") -> OptionError:
    """Returns the error about the option that the configuration refers to, as in `seed: ${seed}`."""
    from omegaconf import OmegaConf

    parent, _, name = error.option.rpartition(".")
    node = OmegaConf.select(config, parent) if config is not None else None
    values = OmegaConf.to_container(node, resolve=False) if OmegaConf.is_dict(node) else None
    reference = re.fullmatch(r"\$\{([\w.]+)\}", str(values.get(name))) if isinstance(values, dict) else None
    return OptionError(reference.group(1), error.got, error.expected) if reference else error


def _disk_full_error(config: "DictConfig") -> UserError:
    from omegaconf import OmegaConf

    places = {name: OmegaConf.select(config, name) for name in ("output_dir", "cache_dir", "teach.output")}
    shown = " or ".join(f"{name}={place}" for name, place in places.items() if place is not None)
    return UserError(
        f"there is no room left to write in {shown}: free some and run the command again, incomplete files are removed"
    )


def _unknown_option_message(key: str) -> str:
    """Returns the message for an option that the configuration does not have."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    groups = sorted(path.name for path in config_directory().iterdir() if path.is_dir())
    head, _, rest = key.partition(".")
    chosen = rest and any(argument.startswith(f"+{head}=") for argument in sys.argv)
    if head in ("teacher", "student") and not chosen:
        return f"{key} has no effect without a {head}: choose one with +{head}=NAME, one of {', '.join(_names(head))}"
    choices = [
        a for a in sys.argv[1:] if re.fullmatch(rf"\+?({'|'.join(groups)})(@[\w.-]+)?=(\[[\w/,-]*\]|[\w/,-]+)", a)
    ]
    overrides = [choice if "[" in choice else choice.partition(",")[0] for choice in choices]  # A sweep's first run.
    try:
        with initialize_config_dir(str(config_directory()), version_base="1.3"):
            config = compose("config", [*overrides, *_search_own()])
    except HydraException:  # For example, a choice that is not there either.
        return f"there is no option {key}"
    parent, _, last = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    while parent and not OmegaConf.is_dict(node):
        parent, _, last = parent.rpartition(".")
        node = OmegaConf.select(config, parent) if parent else config
    prefix = f"{parent}." if parent else ""
    names = [f"{prefix}{name!s}" for name in node if name != "_target_"]
    below = [f"{group}.{key}" for group in groups if key in (OmegaConf.select(config, group) or ())]
    if len(below) == 1:
        return f"there is no option {key} (did you mean {below[0]}?)"
    return f"there is no option {key}{suggest(prefix + last, names)}"


def _search_own() -> list[str]:
    """Returns the option by which Hydra reads the user's YAML files too."""
    found = ",".join(f"'file://{directory}'" for directory in _own_directories())
    return [f"hydra.searchpath=[{found}]"] if found else []


def _print_error(error: DistillError) -> int:
    """Prints the error and returns its exit code."""
    print(f"error: {' '.join(str(error).splitlines())}", file=sys.stderr)  # Others read its last line.
    if isinstance(error, Interrupted):
        forget_interrupt()
    return error.exit_code


def run() -> None:
    """Runs the command and ends the process with its exit code."""
    code = main()
    gc.freeze()  # Python would look once more at all objects of the packages that were imported.
    sys.exit(code)


def run_script() -> None:
    """Runs the script `distill` as `python -m distill`, which finds the modules of the working directory first.

    In a checkout this is the package of the checkout, whichever one the script was installed with.
    """
    directory = Path.cwd()
    if not sys.flags.safe_path:
        sys.path.insert(0, str(directory))
        package = directory / "distill"
        if (package / "__main__.py").is_file() and not package.samefile(Path(__file__).parent):
            for name in [name for name in sys.modules if name.partition(".")[0] == "distill"]:
                del sys.modules[name]
            runpy.run_module("distill", run_name="__main__", alter_sys=True)
    run()


if __name__ == "__main__":
    run()
