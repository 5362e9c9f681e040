"""Messages that C++ writes beneath Python's stderr."""

import os

import pytest
import torch

from distill.training import strategies


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
