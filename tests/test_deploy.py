"""Tests of the files that deploy the server of predictions and the service of jobs: their commands and their parts."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from distill import service
from distill.serve import __main__ as serve
from distill.serve.jobs import deployment
from tests.test_layout import ROOT

DEPLOY = ROOT / "deploy"
PARSERS = {"distill.serve": serve._parse, "distill.service": service._parse}
DOCKERFILES = sorted(path for path in DEPLOY.glob("Dockerfile*") if path.suffix != ".dockerignore")
UNITS = sorted(DEPLOY.glob("distill-*.service"))


def read_command(dockerfile: Path, arguments: list[str] | None = None) -> list[str]:
    """Returns the command of an image with arguments, by default its own."""
    (line,) = re.findall(r"^ENTRYPOINT (.*)$", dockerfile.read_text(), re.MULTILINE)
    own = re.findall(r"^CMD (.*)$", dockerfile.read_text(), re.MULTILINE)
    return [
        *json.loads(line),
        *([word for line in own for word in json.loads(line)] if arguments is None else arguments),
    ]


def parse(command: list[str]) -> Any:
    """Returns the options of `python -m MODULE ...` as its parser reads them; an unknown one ends the test."""
    assert command[1] == "-m"
    return PARSERS[command[2]](command[3:])


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text()))


def test_there_is_a_unit_and_an_image_for_each_server() -> None:
    assert len(UNITS) == len(DOCKERFILES) == len(PARSERS)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_the_command_of_a_unit_has_options_that_exist(unit: Path) -> None:
    text = unit.read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    parse(shlex.split(command))
    for added in re.findall(r"^#\s+(--\S+ \S+)$", text, re.MULTILINE):
        parse([*shlex.split(command), *shlex.split(added)])


def test_a_restart_of_the_service_leaves_its_jobs_with_their_temporary_files() -> None:
    text = (DEPLOY / "distill-service.service").read_text()
    assert "KillMode=process\n" in text  # The default ends the jobs.
    assert "PrivateTmp" not in text  # It is removed with each stop.
    (directory,) = re.findall(r"TMPDIR=/var/lib/(\S+)", text)
    (made,) = re.findall(r"^StateDirectory=(.*)$", text, re.MULTILINE)
    assert directory in made.split()


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_has_what_its_installation_reads(dockerfile: Path) -> None:
    parse(read_command(dockerfile))
    text = dockerfile.read_text()
    (extra,) = re.findall(r"'/source\[(\w+)\]'", text)
    assert re.search(rf"^{extra} = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    kept = dockerfile.with_name(f"{dockerfile.name}.dockerignore").read_text().split()
    assert {"!pyproject.toml", "!constraints.txt", "!distill", "!conf", "!students", "!teachers"} <= set(kept)
    assert all((ROOT / name[1:]).exists() for name in kept if name.startswith("!"))


def test_the_services_of_the_compose_file_have_commands_that_exist(compose: dict[str, Any]) -> None:
    for described in compose["services"].values():
        context = DEPLOY / described["build"]["context"]
        assert context.resolve() == ROOT
        parse(read_command(context / described["build"]["dockerfile"], described["command"]))
        variable = described["environment"]
        assert set(variable) == {serve.TOKEN} == {deployment.TOKEN}


def test_bundles_are_deployed_where_the_server_of_the_compose_file_reads_them(compose: dict[str, Any]) -> None:
    jobs, predictions = compose["services"]["jobs"], compose["services"]["predictions"]
    target = jobs["command"][jobs["command"].index("--serve") + 1]
    url, _, directory = target.rpartition("=")
    assert predictions["command"] == [f"current={directory}"]
    assert url == "http://predictions:8000"
    mounted = [volume.split(":") for volume in (*jobs["volumes"], *predictions["volumes"])]
    parents = [source for source, place, *_ in mounted if place == str(Path(directory).parent)]
    assert len(parents) == 2  # The parent, because the service renames the directory in it.
    assert len(set(parents)) == 1
    assert predictions["volumes"] == [f"{parents[0]}:/bundles:ro"]
    assert {volume.split(":")[0] for volume in jobs["volumes"]} - set(parents) == set(compose["volumes"])
