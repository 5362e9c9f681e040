"""Tests of the Python API in the kernel of a notebook: its outputs, and an interrupt in a training."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

pytest.importorskip("ipykernel", reason="a notebook is run with ipykernel, of the extra dev")
from jupyter_client.manager import KernelManager

from distill.records.run import open_run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
WAIT = 600  # Seconds until a kernel that died is noticed.

SETUP = """
import sys; sys.path.insert(0, {root!r})
import os, distill as d
from lightning.pytorch.callbacks import Callback
from tests.conftest import LABELS, LOOSE

class Tell(Callback):
    def on_train_batch_end(self, trainer, *rest):
        if trainer.global_step == 3:
            print("REACHED", flush=True)

task = d.tasks.Classification(text="sentence", labels=LABELS, data={data!r}, max_length=64, unlabelled=None)
teacher = d.Teacher.from_pretrained({teacher!r}, accept_weak=True, cache_dir={cache!r})
trainer = d.TrainerSettings(batch_size=16, precision="32-true", learning_rate=3e-3, max_epochs=3)

def run(**options):
    return d.distill(teacher, d.students.distilbert(), task, trainer=trainer, directory={directory!r}, export=LOOSE,
                     benchmark=d.BenchmarkSettings(enabled=False), baseline=False, **options)
"""


class Kernel:
    """A kernel of this Python, and the outputs of its cells."""

    def __init__(self) -> None:
        self.manager = KernelManager()
        self.manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self.manager.start_kernel(cwd=str(ROOT))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=WAIT)

    def stop(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def execute(self, code: str, *, interrupt_at: str | None = None) -> list[tuple[str, Any]]:
        """Returns the kind and the content of each message of a cell; interrupts it when it prints a text."""
        number, messages = self.client.execute(code), list[tuple[str, Any]]()
        while True:
            message = self.client.get_iopub_msg(timeout=WAIT)
            if message["parent_header"].get("msg_id") != number:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return messages
            messages.append((kind, content))
            if interrupt_at is not None and interrupt_at in content.get("text", ""):
                self.manager.interrupt_kernel()
                interrupt_at = None


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    started = Kernel()
    yield started
    started.stop()


def test_an_interrupted_cell_is_resumed_and_shows_one_bar_for_each_stage(
    kernel: Kernel, teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data_dir: Path, tmp_path: Path
) -> None:
    for part in (teacher, tokenizer):
        part.save_pretrained(tmp_path / "teacher")
    paths = {
        "data": data_dir,
        "teacher": tmp_path / "teacher",
        "cache": tmp_path / "cache",
        "directory": tmp_path / "run",
    }
    setup = kernel.execute(SETUP.format(root=str(ROOT), **{name: str(path) for name, path in paths.items()}))
    assert not [content for kind, content in setup if kind == "error"]
    stopped = kernel.execute("run(callbacks=Tell())", interrupt_at="REACHED")
    [error] = [content for kind, content in stopped if kind == "error"]
    assert error["ename"] == "Interrupted"
    assert "last.ckpt holds the training so far; distill(..., resume=True) goes on from there" in error["evalue"]
    assert open_run(tmp_path / "run").record["error"] == "interrupted"

    finished = kernel.execute("run(resume=True)")
    kinds = [kind for kind, _ in finished]
    assert kinds[-1] == "execute_result"
    result = finished[-1][1]["data"]
    assert "<table>" in result["text/html"]
    assert not [content for kind, content in finished if kind == "stream" and content["name"] == "stderr"]
    printed = "".join(content["text"] for kind, content in finished if kind == "stream")
    assert "\x1b[" not in printed
    assert "parameters" in result["text/html"]
    assert "parameters" not in printed  # The table of the result stands once.
    shown = [content["data"]["text/html"] for kind, content in finished if kind == "display_data"]
    assert sum("<progress" in html and "student" in html for html in shown) == 1
    assert kinds.count("update_display_data") >= 1  # The bar is changed in place.
    assert all("widget-view" not in key for kind, content in finished if "data" in content for key in content["data"])
    assert open_run(tmp_path / "run").record["status"] == "finished"
