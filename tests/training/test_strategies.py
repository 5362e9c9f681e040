"""Messages that C++ writes beneath Python's stderr, the device of a strategy, and the place of each process."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from distill.training import processes, strategies


def test_only_the_remark_is_left_out_of_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with strategies._without_lines(strategies._REMARK):
        os.write(2, b"[W reducer.cpp] Warning: " + strategies._REMARK + b" in DDP constructor\n")
        os.write(2, b"an error of C++\n")
    assert capfd.readouterr().err == "an error of C++\n"


def test_messages_survive_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        os.write(2, b"cause\n")
        raise ValueError("effect")

    with pytest.raises(ValueError, match="effect"), strategies._without_lines(b"remark"):
        fail()
    assert capfd.readouterr().err == "cause\n"


def test_one_gpu_is_named_by_its_number() -> None:
    """Without a number torch refuses to make it the current GPU, and no training on a GPU begins."""
    assert strategies.create_strategy("auto", torch.device("cuda")).root_device == torch.device("cuda", 0)
    assert strategies.create_strategy("auto", torch.device("cpu")).root_device == torch.device("cpu")


def test_every_process_resumes_at_its_own_place_in_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, steps = tmp_path / "last.ckpt", SimpleNamespace(rank=1, skip=0, place=None)
    torch.save({"identity": {}, "steps_of_epoch": 3, "places": ["first", "second"]}, path)
    monkeypatch.setattr(processes, "get_rank", lambda: 1)
    strategies.Checkpoints(path, every=None, identity={}, steps=steps).skip_finished_steps()
    assert (steps.skip, steps.place) == (3, "second")
