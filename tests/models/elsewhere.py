"""Loads a saved model in a process that has no distill, as another program would."""

import subprocess
import sys
from pathlib import Path

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel


def check_loads_without_distill(network: PreTrainedModel, ids: Tensor, directory: Path, *, auto: str) -> None:
    """Saves the model, and asserts that it has the same logits for `ids` where only transformers and its code are.

    Args:
        directory: an empty one.
        auto: the auto class that loads it.
    """
    network.save_pretrained(directory / "saved")
    program = (
        "import sys, torch\n"
        "sys.modules['distill'] = None\n"
        f"from transformers import {auto} as Auto\n"
        "model = Auto.from_pretrained(sys.argv[1], trust_remote_code=True).eval()\n"
        "print(model(torch.tensor(eval(sys.argv[2]))).logits.tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(directory / "saved"), str(ids.tolist())],
        cwd=directory, env={"PATH": "", "HF_HOME": str(directory / "hub"), "HF_HUB_OFFLINE": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.array(eval(done.stdout)), network(ids).logits.detach().numpy(), rtol=1e-5)
