"""Tests of passwords in URLs: they are refused in options, and hidden in errors and notices."""

import json
import os
from pathlib import Path

import fsspec
import pytest

from distill.core import storage
from distill.core.console import print_notice
from distill.core.errors import (
    DistillError,
    OptionError,
    UserError,
    describe_refusal,
    find_texts,
    has_secret,
    hide_secrets,
)
from distill.records.loggers import tracked
from distill.records.run import create_run_in
from tests.jobs.conftest import Command


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("sftp://user:secret@host/runs", "sftp://user:***@host/runs"),
        ("cache_dir=SFTP://user:secret@host", "cache_dir=SFTP://user:***@host"),
        ("sftp://user:se/cr@et@host:22/runs", "sftp://user:***@host:22/runs"),
        ("ftp://user:p@ss'word@host/x", "ftp://user:***@host/x"),
        ("ftp://:secret@host", "ftp://:***@host"),
        ("https://token@host/x", "https://***@host/x"),
        ("http://token@host/x", "http://***@host/x"),
        ("https://host/x?token=secret&page=1", "https://host/x?token=***&page=1"),
        ("abfs://data@account.dfs.core.windows.net/x?sv=1&sig=a%3D", "abfs://data@account.dfs.core.windows.net/x?sv=1&sig=***"),
        ("https://s3/x?X-Amz-Credential=c&X-Amz-Signature=s", "https://s3/x?X-Amz-Credential=***&X-Amz-Signature=***"),
        ("https://s3/x?AWSAccessKeyId=a&api_key=b&apikey=c", "https://s3/x?AWSAccessKeyId=***&api_key=***&apikey=***"),
        ("https://host/#access%5Ftoken=secret", "https://host/#access%5Ftoken=***"),
        ("postgresql+psycopg2://me:secret@host:5432/x", "postgresql+psycopg2://me:***@host:5432/x"),
        ("[sftp://a:secret@host,sftp://b:secret@host]", "[sftp://a:***@host,sftp://b:***@host]"),
        ("simplecache::sftp://a:secret@host/x", "simplecache::sftp://a:***@host/x"),
    ],
)  # fmt: skip
def test_passwords_are_hidden(text: str, hidden: str) -> None:
    assert hide_secrets(text) == hidden
    assert has_secret(text)
    assert not has_secret(hidden)


@pytest.mark.parametrize(
    "text",
    [
        "sftp://user@host/x", "s3://bucket/a:b@c", "s3://bucket/x?versionId=3", "http://[::1]:8080/x", "sftp://u:@host",
        "http://host:8080/a@b", "abfs://data@account.dfs.core.windows.net/x", "hf://datasets/a/b@main/x", "a:b@c",
        "https://host/x?monkey=1&tokens=2&signal=3", "file:///data/x", "runs/token=3", "",
    ],
)  # fmt: skip
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert hide_secrets(text) == text


def test_a_refusal_names_the_option_and_where_the_password_goes() -> None:
    sftp = describe_refusal("cache_dir", "cache_dir=sftp://user:secret@host")
    assert sftp is not None
    assert sftp.startswith("cache_dir has a URL with a password or a token, which config.yaml, run.json and names of")
    assert "leave it out of the URL and set FSSPEC_SFTP_PASSWORD" in sftp
    assert "set MLFLOW_TRACKING_URI instead" in str(describe_refusal("logger.mlflow.tracking_uri", "http://a:secret@b"))
    assert "download the files and give their path" in str(
        describe_refusal("task.data_dir", "https://x/y?token=secret")
    )
    assert describe_refusal("cache_dir", "sftp://user@host") is None
    assert "secret" not in sftp


def test_fsspec_reads_the_variable_that_a_refusal_names(monkeypatch: pytest.MonkeyPatch) -> None:
    conf: dict[str, dict[str, object]] = {}
    monkeypatch.setenv("FSSPEC_SFTP_PASSWORD", "secret")
    fsspec.config.set_conf_env(conf, dict(os.environ))
    assert conf["sftp"] == {"password": "secret"}


def test_texts_of_a_configuration_are_found_with_their_names() -> None:
    found = list(find_texts({"task": {"data_dir": "a", "text": ["b", 1]}, "c": None}))
    assert [pair for pair in found if pair[1] in "ab"] == [("task.data_dir", "a"), ("task.text.0", "b")]
    assert ("teacher.paths", "sftp://u:p@h") in list(find_texts({"teacher": {"paths": {"sftp://u:p@h": 1}}}))


SECRET = "sftp://user:secret@host/runs"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ([f"cache_dir={SECRET}"], "cache_dir"),
        ([f"output_dir='{SECRET}'"], "output_dir"),
        ([f"task.data_dir={SECRET}"], "task.data_dir"),
        ([f"+teacher.paths=[a,{SECRET}]"], "teacher.paths"),
        ([f"resume={SECRET}"], "resume"),
        (["job=report", f"runs={SECRET}"], "runs"),
        (["job=benchmark", f"bundles=[{SECRET}]"], "bundles"),
        (["-m", f"hydra.sweep.dir={SECRET}"], "hydra.sweep.dir"),
        (["logger=mlflow", "logger.mlflow.tracking_uri=postgresql://me:secret@host/x"], "logger.mlflow.tracking_uri"),
    ],
)
def test_no_option_takes_a_url_with_a_password(command: Command, tmp_path: Path, options: list[str], name: str) -> None:
    code, output, error = command("+teacher=embedded", "+student=distilbert", *options)
    assert code == 2
    assert error.startswith(f"error: {name} has a URL with a password or a token")
    assert "secret" not in output + error
    assert list(tmp_path.iterdir()) == []


def test_a_password_from_the_environment_is_refused_too(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTILL_CACHE", SECRET)
    code, _, error = command("+teacher=embedded", "+student=distilbert")
    assert (code, error.startswith("error: cache_dir has a URL with a password")) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_no_directory_is_named_after_a_password() -> None:
    with pytest.raises(UserError, match="a directory has a URL with a password") as raised:
        storage.local_path(SECRET)
    assert "secret" not in str(raised.value)


def test_errors_and_notices_hide_passwords(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert str(DistillError(f"{SECRET} does not respond")) == "sftp://user:***@host/runs does not respond"
    assert "secret" not in str(OptionError("cache_dir", SECRET, "a directory"))
    print_notice(f"{SECRET} does not respond")
    assert capsys.readouterr().out == "Notice: sftp://user:***@host/runs does not respond\n"
    run = create_run_in(tmp_path / "run", job="distill")
    with pytest.raises(RuntimeError), tracked(run, resume_with=""):
        raise RuntimeError(f"{SECRET} does not respond")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["error"] == "RuntimeError: sftp://user:***@host/runs does not respond"
