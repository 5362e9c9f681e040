"""Tests of the allow-list of options: every key of conf has a verdict, and no request names a path or code."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep
from hypothesis import given
from hypothesis import strategies as st

from distill.__main__ import register_resolvers
from distill.core.errors import UserError, config_directory
from distill.serve.jobs.allowed_options import (
    DEEPEST,
    LONGEST_OVERRIDE,
    MOST_VALUES,
    TABLE,
    OverrideError,
    ValueKind,
    check_overrides,
    find_verdict,
    is_sweep,
    parse_override,
)
from tests.composition import quick_composition
from tests.fuzzing import fuzz

CONF = config_directory()
GROUPS = sorted(
    path.name for path in CONF.iterdir() if path.is_dir() and path.name not in ("hydra", "cache", "features")
)
GLOBAL = ("ablation", "experiment", "variant")  # Their files have whole keys, and change other groups.
DATA, TEACHERS = Path("/srv/data"), Path("/srv/teachers")


def check(*overrides: str, administrator: bool = False) -> tuple[str, ...]:
    return check_overrides(
        overrides,
        resolve_data=lambda name: DATA / name,
        resolve_teacher=lambda name: TEACHERS / name,
        administrator=administrator,
    )


def list_keys(config: Any, *key: str) -> list[tuple[str, ...]]:
    """Returns the key of every value of a configuration, and those of its empty mappings."""
    if isinstance(config, dict) and config:
        return [found for name, value in config.items() for found in list_keys(value, *key, str(name))]
    return [key]


def read_keys(path: Path) -> set[tuple[str, ...]]:
    """Returns the keys of a file of conf and of its defaults."""
    text = path.read_text(encoding="utf-8")
    content = yaml.load(text, Loader=yaml.CSafeLoader) or {}
    found = set[tuple[str, ...]]()
    for item in content.pop("defaults", []):
        [(source, name)] = item.items() if isinstance(item, dict) else [(item, "")]
        source, _, package = source.partition("@")
        if source != "_self_" and not source.startswith("override"):
            file = f"{source}/{name}.yaml" if name else f"{source}.yaml"
            prefix = () if package == "_here_" or not name else tuple((package or source).split("."))
            below = read_keys(CONF / file[1:] if file.startswith("/") else path.parent / file)
            found |= {(*prefix, *key) for key in below}
    return found | set(list_keys(content))


@pytest.fixture(scope="module")
def keys() -> set[tuple[str, ...]]:
    """The key of every option of every file of conf."""
    found = read_keys(CONF / "config.yaml")
    for group in GROUPS:
        for path in (CONF / group).glob("*.yaml"):
            is_global = group in GLOBAL or "@package _global_" in path.read_text(encoding="utf-8")
            prefix = () if is_global else (group,)
            found |= {(*prefix, *key) for key in read_keys(path)}
    return found | {("task", "tasks", "sst2", *key) for key in read_keys(CONF / "task" / "sst2.yaml")}


def test_every_key_of_conf_has_a_verdict(keys: set[tuple[str, ...]]) -> None:
    names = {".".join(key) for key in keys}
    assert {"task.mask.unit", "teacher.finetune.ema", "objective.terms.gkd.beta", "substitute.seed", "trust"} <= names
    assert len(keys) > 500
    assert not sorted(".".join(key) for key in keys if find_verdict(key) is None)


def test_every_entry_of_the_table_is_a_key_of_conf(keys: set[tuple[str, ...]]) -> None:
    known = {key[:end] for key in keys for end in range(1, len(key) + 1)}
    # Keys of mappings, which are empty in conf or have a name of the user.
    free = {
        "task.tasks", "task.transfer.*", "task.splits.*", "task.words.*", "task.words.*.*", "teacher.paths.*", *GROUPS
    }  # fmt: skip
    for name in TABLE.keys() - free:
        parts = name.split(".")
        assert any(
            len(parts) == len(key) and all(part in ("*", own) for part, own in zip(parts, key, strict=True))
            for key in known
        ), name


def test_every_key_that_may_name_code_or_a_path_is_refused(keys: set[tuple[str, ...]]) -> None:
    for key in keys:
        verdict = find_verdict(key)
        assert verdict is not None
        if key[-1] in ("_target_", "trust_remote_code") or key == ("trust",) or key[0] == "hydra":
            assert verdict.kind == ValueKind.NEVER, key
        if (
            key[-1] in ("path", "paths", "data_dir", "encoder", "tokenizer", "model", "bank", "texts")
            and key[0] != "record"
        ):
            assert verdict.kind in (ValueKind.DATA, ValueKind.TEACHER, ValueKind.NEVER), key
        if key[-1] in ("id", "hub_id", "revision", "cache_dir", "output_dir", "tracking_uri"):
            assert not verdict.is_for_all, key


def test_a_plain_job_is_taken_and_its_names_become_paths() -> None:
    assert check("+teacher=minilm", "+student=distilbert", "task=classification", "task.data_dir=data:films") == (
        "+teacher=minilm", "+student=distilbert", "task=classification", "task.data_dir='/srv/data/films'",
    )  # fmt: skip
    assert check("task.text=[my review,'a, b']", "seed=range(1,4)", "trainer.learning_rate=1e-4,2e-4") == (
        "task.text=['my review','a, b']", "seed=1,2,3", "trainer.learning_rate=1e-4,2e-4",
    )  # fmt: skip
    assert check("task.transfer={de:data:german}", "task.unlabelled=auto", "teacher.path=teacher:ours") == (
        "task.transfer={de:'/srv/data/german'}", "task.unlabelled=auto", "teacher.path='/srv/teachers/ours'",
    )  # fmt: skip
    assert check("task=multi", "task.tasks=[sst2,mrpc]", "task.tasks.sst2.data_dir=data:a") == (
        "task=multi", "task.tasks=[sst2,mrpc]", "task.tasks.sst2.data_dir='/srv/data/a'",
    )  # fmt: skip
    assert is_sweep(check("seed=1,2"))
    assert not is_sweep(check("seed=1", "student.layers=[0,2]"))


def test_a_table_of_probabilities_is_a_data_set() -> None:
    given = ("+teacher=file", "teacher.path=data:probabilities", "teacher.encoder=teacher:bert")
    assert check(*given)[1:] == ("teacher.path='/srv/data/probabilities'", "teacher.encoder='/srv/teachers/bert'")
    # Weights of a stranger are no data.
    for teachers in (
        ["+teacher=pretrained"], ["+teacher=file,pretrained"], ["+teacher=file", "++teacher=pretrained"], [],
    ):  # fmt: skip
        with pytest.raises(OverrideError, match=r"got teacher.path='data:evil', expected teacher:NAME"):
            check(*teachers, "teacher.path=data:evil")


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("task._target_=os.system", "the option task._target_ cannot be set here: it names the code that runs"),
        ("objective.terms.soft={_target_:os.system}", "cannot be read at character 23"),
        ("objective.terms.soft={weight:1}", "there is no option 'objective.terms.soft'"),
        ("task.transfer={de:{_target_:os.system}}", "cannot be read"),
        ("hydra.run.dir=/", "the option hydra.run.dir cannot be set here: it is of the command line"),
        ("hydra/launcher=ray", "expected key=value"),
        ("-m", "expected key=value"),
        ("trust=[os]", "the option trust cannot be set here: it would run the code of others"),
        ("teacher.trust_remote_code=true", "it would run the code of others"),
        ("resume=true", "the option resume cannot be set here: the service sets it"),
        ("job=cache", "job=cache is not for requests to the service"),
        ("teacher.id=owner/name", "the option teacher.id is for the administrator of the service: leave it out"),
        ("logger=wandb", "logger=wandb is not for requests"),
        ("task.data_dir=/etc", "got task.data_dir='/etc', expected data:NAME with the name of a data set, or null"),
        ("task.data_dir=teacher:x", "expected data:NAME"),
        ("task.bank=[data:a,/etc/passwd]", "got task.bank='/etc/passwd'"),
        ("task.name=../../x", "got task.name='../../x', expected a name without spaces and slashes"),
        ("export.target=/etc/passwd", "got export.target='/etc/passwd', expected numbers, words"),
        ("task=../../etc/x", "got task='../../etc/x', expected one of acl_arc"),
        ("task.text=${oc.env:HOME}", r"has a reference \$\{...\}"),
        ("task.text=$\\{oc.env:HOME}", "cannot be read"),
        ("task.text=\"$\\{oc.env:HOME}\"", "has a backslash"),
        ("task.text=a\nb", "has a character that does not print"),
        ("seed=range(1,1)", "has no values, or more than 1,000"),
        ("task.splits={train:[../../secret]}", "got task.splits='../../secret', expected names of files"),
        ("task.text='a", "opens a quote that is never closed"),
        ("task.max_lenght=3", r"there is no option 'task.max_lenght': did you mean task.max_length\?"),
        ("", "expected key=value"),
    ],
)  # fmt: skip
def test_other_overrides_are_refused_in_one_line(override: str, reason: str) -> None:
    with pytest.raises(OverrideError, match=reason) as caught:
        check(override)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 2_000


def test_an_administrator_may_name_models_and_directories_and_never_code() -> None:
    allowed = (
        "teacher.id=owner/name", "cache_dir=/big/cache", "output_dir=/big/runs", "trainer.devices=2", "trainer=ddp",
    )  # fmt: skip
    assert len(check(*allowed, administrator=True)) == len(allowed)
    for override in ("trust=[os]", "task._target_=os.system", "job=cache", "hydra.run.dir=/", "task.data_dir=/etc"):
        with pytest.raises(OverrideError):
            check(override, administrator=True)


def test_a_missing_data_set_ends_the_check() -> None:
    def refuse(name: str) -> Path:
        raise UserError(f"there is no data set {name}")

    with pytest.raises(UserError, match="there is no data set films"):
        check_overrides(["task.data_dir=data:films"], resolve_data=refuse, resolve_teacher=refuse)


def test_each_limit_is_itself_taken() -> None:
    start, items = "task.text=", ["a"] * MOST_VALUES
    taken = ("seed=range(1,201)", f"{start}{'a' * (LONGEST_OVERRIDE - len(start))}", f"{start}[{','.join(items)}]",
             f"{start}{'[' * DEEPEST}a{']' * DEEPEST}")  # fmt: skip
    for override in taken:
        assert len(check(override)) == 1
    assert len(check(*["seed=1"] * 200)) == 200
    with pytest.raises(OverrideError, match="got 201 overrides, the limit is 200"):
        check(*["seed=1"] * 201)
    for override, reason in (
        ("seed=range(1,202)", "the overrides are a sweep of 201 runs, the limit is 200"),
        (f"{taken[1]}a", "an override has 10,001 characters, the limit is 10,000"),
        (f"{start}[{','.join([*items, 'a'])}]", "has more than 1,000 values"),
        (f"{start}{'[' * (DEEPEST + 1)}a{']' * (DEEPEST + 1)}", "has lists or mappings in more than 4 others"),
    ):
        with pytest.raises(OverrideError, match=reason):
            check(override)


PIECES = [
    "task", "teacher", "objective", "terms", "soft", "_target_", "hydra", "run", "dir", "data_dir", "path", "paths",
    "trust", "trust_remote_code", "tasks", "sst2", "text", "splits", "name", ".", "=", "+", "++", "~", "@", "/", "..",
    "data:films", "teacher:x", "${", "}", "{", "[", "]", "(", ")", ",", ":", "'", '"', "\\", " ", "null", "1e-4",
    "os.system", "range(1,3)", "/etc/passwd", "\0", "\n", "é", "\ud800",
]  # fmt: skip


@fuzz(300)
@given(st.lists(st.sampled_from(PIECES), max_size=12), st.booleans())
def test_any_override_is_refused_or_names_only_resolved_paths(pieces: list[str], administrator: bool) -> None:
    starts = ["", "task.text=", "task.data_dir=", "task.transfer={a:", "teacher.paths=[", "+task.splits={x:"]
    for start in starts:
        try:
            [text] = check(f"{start}{''.join(pieces)}", administrator=administrator)
        except OverrideError:
            continue
        rest = re.sub(r"'/srv/(data|teachers)/[A-Za-z0-9][A-Za-z0-9._-]*'", "", text)
        assert "_target_=" not in text
        assert "${" not in text
        assert text.startswith(("task.text=", "+task.text=", "++task.text=")) or "/" not in rest
        assert check_with_hydra(text)


def plain(value: Any) -> Any:
    """Returns a value of Hydra's parser or of ours, with numbers and words in one form."""
    if isinstance(value, list):
        return list(map(plain, value))
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    text = str(getattr(value, "text", "null" if value is None else value))
    try:
        return float(text.replace("_", "")).hex()
    except ValueError:
        return text.lower() if text.lower() in ("true", "false", "null") else text


def check_with_hydra(text: str) -> bool:
    """Returns whether Hydra reads an override with the same key and the same values."""
    parsed, mine = OverridesParser.create().parse_override(text), parse_override(text)
    assert (parsed.key_or_group, parsed.package) == (mine.name, None)
    found = parsed.value()
    values = found.list if isinstance(found, ChoiceSweep) else [found]
    return bool(plain(values) == plain(list(mine.values)))


def test_hydra_reads_what_was_written() -> None:
    register_resolvers()
    written = check(
        "task=classification", "+teacher=minilm", "+student=distilbert", "task.separator='; '",
        "task.text=[\"it's\",'a, (b)','[x]',\"#5 {€}\"]", "task.labels=[1,'2',true,'null']",
    )  # fmt: skip
    with quick_composition(), initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", list(written))
    assert list(config.task.text) == ["it's", "a, (b)", "[x]", "#5 {€}"]
    assert list(config.task.labels) == [1, "2", True, "null"]
    assert config.task.separator == "; "
