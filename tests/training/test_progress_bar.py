"""Tests of the losses that are shown during a training."""

from collections.abc import Mapping

import pytest

from distill.training.lightning_callbacks import describe_losses

LOSSES = {"loss": 0.412, "soft": 0.031, "hard": 0.105, "cosine": 0.047}


@pytest.mark.parametrize(
    ("weights", "width", "expected"),
    [
        (
            {"soft": 5.0, "hard": 2.0, "cosine": 1.0},
            70,
            "loss 0.4120 = soft 0.0310 x 5 + hard 0.1050 x 2 + cosine 0.0470",
        ),
        ({"soft": 5.0, "hard": 2.0, "cosine": 1.0}, 60, "loss 0.4120"),
        ({"hard": 0.5}, 70, "loss 0.4120 = hard 0.1050 x 0.5"),
        ({"hard": 1.0}, 70, "loss 0.4120"),
    ],
)
def test_the_loss_is_the_weighted_sum_of_its_terms(weights: Mapping[str, float], width: int, expected: str):
    assert describe_losses(LOSSES, weights, width=width) == expected


def test_before_the_first_step_there_is_no_loss():
    assert describe_losses({}, {"soft": 1.0}, width=70) == ""
