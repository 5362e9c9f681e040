"""Tests of the options of a training that are chosen from the data and the student."""

import re
from dataclasses import replace
from typing import Any

import pytest
from distill.builtin.students import bilstm
from distill.builtin.students.distilbert import from_teacher
from transformers import PreTrainedModel

import distill as d
from distill import api
from distill.core.errors import UserError
from distill.kinds import Classification
from distill.training import hyperparameters
from distill.training.hyperparameters import (
    CHOSEN,
    Facts,
    TrainerSettings,
    choose,
    choose_epochs,
    count_evaluations,
    evaluation_interval,
)
from tests.conftest import SETTINGS


def values(**facts: Any) -> dict[str, Any]:
    defaults = {"examples": 3576, "steps_per_epoch": 112, "start": "inherited", "width": 384}
    known = Facts(**defaults | facts)
    return {name: choice.value for name, choice in choose(known, choose_epochs(known) * known.steps_per_epoch).items()}


@pytest.mark.parametrize(
    ("examples", "steps", "epochs", "evaluations"),
    [(67_349, 2_105, 2, 3), (20_000, 625, 4, 3), (3_576, 112, 22, 1), (2_490, 78, 31, 1), (64, 2, 40, 1)],
)
def test_small_data_gets_more_epochs(examples: int, steps: int, epochs: int, evaluations: int):
    chosen = values(examples=examples, steps_per_epoch=steps)
    assert (chosen["max_epochs"], chosen["evaluations"]) == (epochs, evaluations)
    assert chosen["soup"] == 3


def test_an_example_of_many_sequences_counts_as_many():
    """The lists of a ranking would else be read as often as single texts, which takes hours."""
    single, lists = (choose_epochs(Facts(800, 25, "whole", 384, sequences=(n, 100))) for n in (1, 8))
    assert (single, lists) == (40, 6)  # 1,200 steps, and an eighth of them.
    facts = Facts(800, 25, "whole", 384, scored=100, sequences=(8, 100))
    assert hyperparameters.choose_evaluations(facts, 24) == 0.96  # 1.5 * 24 * 6,400 / 10,000 = 23 in all
    chosen = choose(facts, 150)["max_epochs"]
    assert chosen.reason == "800 examples of 8 sequences are 25 steps an epoch, and 150 steps are the least"


@pytest.mark.parametrize(
    ("start", "width", "rate"),
    [("inherited", 384, 2e-4), ("inherited", 768, 1e-4), ("inherited", 128, 2e-4), ("fresh", 384, 5e-4),
     ("no_attention", 300, 1e-3), ("whole", 128, 1e-4), ("whole", 384, 1e-4), ("whole", 512, 5e-5),
     ("whole", 768, 5e-5), ("whole", 1024, 2e-5)],
)  # fmt: skip
def test_the_learning_rate_follows_from_the_layers_at_the_start(start: str, width: int, rate: float):
    assert values(start=start, width=width)["learning_rate"] == pytest.approx(rate)


def test_the_start_is_known_from_the_copied_tensors(teacher: PreTrainedModel, task: Classification):
    assert hyperparameters.describe_student(from_teacher(teacher)) == ("inherited", 32)
    assert hyperparameters.describe_student(from_teacher(teacher, init="random")) == ("fresh", 32)
    student = bilstm.from_teacher(teacher, task=task, embedding_dim=16, hidden_dim=8)
    assert student.inherited  # Its embeddings.
    assert hyperparameters.describe_student(student)[0] == "no_attention"
    assert hyperparameters.describe_student(teacher) == ("inherited", 32)  # A loaded model.


def test_a_table_of_the_teacher_is_frozen_at_first_below_random_layers_without_attention(
    teacher: PreTrainedModel, task: Classification
):
    options: dict[str, Any] = {"task": task, "embedding_dim": 16, "hidden_dim": 8}
    students = {
        "teacher": bilstm.from_teacher(teacher, **options),
        "random": bilstm.from_teacher(teacher, **options, init="random"),
        "layers": from_teacher(teacher),
    }
    frozen = {}
    for name, student in students.items():
        facts = Facts(
            64, 2, *hyperparameters.describe_student(student), has_table=hyperparameters.has_inherited_table(student)
        )
        settings, chosen = hyperparameters.resolve(TrainerSettings.auto(), facts)
        frozen[name] = settings.frozen_embeddings
        assert ("frozen_embeddings" in chosen) == (name == "teacher")
    assert frozen == {"teacher": 0.33, "random": 0, "layers": 0}
    assert [hyperparameters.has_inherited_table(student) for student in students.values()] == [True, False, True]
    settings = TrainerSettings.auto(frozen_embeddings=0.33, max_epochs=5)
    with pytest.raises(ValueError, match="learning_rate is auto, expected a value"):
        settings.total_steps(10)
    assert settings.frozen_steps(50) == 17


def test_a_task_may_need_more_epochs_than_large_data_has():
    """Answers are far from what they reach after 2 epochs."""
    facts = Facts(87_599, 2_738, "inherited", 384, fewest_epochs=10)
    assert choose_epochs(facts) == 10
    reason = choose(facts, 27_380)["max_epochs"].reason
    assert reason == "87,599 examples are 2,738 steps an epoch, and 10 epochs are the fewest for this task"
    assert choose_epochs(replace(facts, examples=2_400, steps_per_epoch=75)) == 32  # 2,400 steps.


@pytest.mark.parametrize(
    ("given", "examples", "tokens", "compares", "size"),
    [
        ({}, 67_349, 13.4, False, 128),
        ({}, 18_900, 20.1, False, 64),
        ({}, 18_900, 20.0, False, 128),
        ({}, 18_900, 40.1, False, 32),
        ({}, 10_000, 13.4, False, 32),  # Small data needs many steps.
        ({}, 67_349, 13.4, True, 32),
        ({"learning_rate": 2e-4}, 67_349, 13.4, False, 32),
        ({"batch_tokens": 512}, 67_349, 13.4, False, 32),
        ({"accumulate": 2}, 67_349, 13.4, False, 32),
        ({"devices": 2}, 67_349, 13.4, False, 32),
    ],
)
def test_many_short_texts_are_trained_in_larger_batches(
    given: dict[str, Any], examples: int, tokens: float, compares: bool, size: int
):
    settings = TrainerSettings.auto(accelerator="cpu", **given)
    assert hyperparameters.choose_batch_size(settings, examples, tokens, compares=compares) == size


def test_passes_over_the_data_stay_as_many_in_larger_batches():
    small, large = Facts(18_900, 591, "inherited", 384), Facts(18_900, 148, "inherited", 384, growth=4)
    assert choose_epochs(small) == choose_epochs(large) == 5
    rates = [hyperparameters.resolve(TrainerSettings.auto(), facts)[0].learning_rate for facts in (small, large)]
    assert rates == [2e-4, 4e-4]
    reason = hyperparameters.resolve(TrainerSettings.auto(), large)[1]["learning_rate"]["reason"]
    assert reason == "the student has pre-trained layers of width 384, and a batch has 128 examples"


def test_batches_have_a_size_before_they_are_made():
    settings = TrainerSettings.auto()
    with pytest.raises(ValueError, match="batch_size is auto, expected a value: "):
        settings.batches()
    facts = Facts(64, 2, "inherited", 32)
    assert hyperparameters.resolve(settings, facts)[0].batch_size == hyperparameters.for_text(settings).batch_size == 32
    assert hyperparameters.resolve_finetuning(settings, 64, width=32)[0].batch_size == 32
    assert hyperparameters.with_batch_size(SETTINGS, 64) == SETTINGS


def test_given_values_win_and_chosen_ones_have_reasons():
    facts = Facts(3576, 112, "inherited", 384)
    settings, chosen = hyperparameters.resolve(TrainerSettings.auto(learning_rate=1e-3, patience=None), facts)
    assert (settings.learning_rate, settings.patience, settings.max_epochs) == (1e-3, None, 22)
    assert set(chosen) == set(CHOSEN) - {"learning_rate", "patience", "ema", "frozen_embeddings"}
    assert chosen["max_epochs"] == {
        "value": 22, "reason": "3,576 examples are 112 steps an epoch, and 2,400 steps are the least",
    }  # fmt: skip
    assert dict(hyperparameters.describe_choices(chosen))["soup"].startswith("3: the average of the last weights")
    assert settings.total_steps(112) == 2464
    assert hyperparameters.resolve(SETTINGS, facts) == (SETTINGS, {})


def test_a_choice_without_an_effect_is_not_reported():
    facts = Facts(3576, 112, "inherited", 384)
    settings, chosen = hyperparameters.resolve(TrainerSettings.auto(max_steps=150), facts)
    assert settings.total_steps(112) == 150
    assert set(chosen) == {"learning_rate", "evaluations", "soup", "patience"}
    settings, chosen = hyperparameters.resolve(TrainerSettings.auto(max_steps=10_000), facts)
    assert settings.total_steps(112) == 2464
    assert chosen["max_epochs"]["value"] == 22


def test_evaluations_are_counted_in_the_training_that_takes_place():
    facts = Facts(64, 4, "inherited", 32)
    for given, expected, number in (
        ({"max_epochs": 1}, 6, 4),  # Not more than steps.
        ({"max_epochs": 15}, 2, 30),
        ({"max_steps": 8}, 3, 4),  # After every second step.
        ({"max_steps": 10}, 3, 5),
    ):
        settings, chosen = hyperparameters.resolve(replace(TrainerSettings.auto(), **given), facts)
        assert settings.evaluations == expected
        assert chosen["evaluations"]["reason"].startswith(f"{number} in all")


@pytest.mark.parametrize(
    ("steps", "scored", "evaluations", "number", "soup"),
    [
        (500, 872, 26, 7, 3),  # After every 81 steps.
        (12, 872, 350, 2, 3),
        (12, 40_000, 350, 2, 3),
        (1, 872, 4210, 1, 1),
    ],
)
def test_a_training_of_less_than_an_epoch_is_evaluated_too(
    steps: int, scored: int, evaluations: float, number: int, soup: int
):
    facts = Facts(67_349, 2105, "inherited", 384, scored=scored)
    settings, chosen = hyperparameters.resolve(TrainerSettings.auto(max_steps=steps), facts)
    assert (settings.evaluations, settings.soup) == (evaluations, soup)
    assert chosen["evaluations"]["reason"].startswith(f"{number} in all")
    assert count_evaluations(evaluations, steps_per_epoch=2105, steps=steps) == number


def test_the_last_evaluation_is_not_followed_by_another_one_at_once():
    """2 x 2,105 steps with 3 evaluations an epoch: 702, 1404, ..., 3510, 4210."""
    assert evaluation_interval(3, 2105) == 702
    assert count_evaluations(3, steps_per_epoch=2105, steps=4210) == 6
    assert evaluation_interval(0.25, 100) == 400
    assert evaluation_interval(9, 4) == 1
    assert evaluation_interval(3 * 49 / 98, 49) == evaluation_interval(3, 98)


@pytest.mark.parametrize(
    ("examples", "steps", "scored", "expected"),
    [(67_349, 2105, 872, 3), (827, 26, 5_500, 0.23), (827, 26, 40_000, 0.15), (7_938, 249, 11_000, 1)],
)
def test_evaluations_of_a_large_dev_take_less_time_than_the_training(
    examples: int, steps: int, scored: int, expected: float
):
    assert values(examples=examples, steps_per_epoch=steps, scored=scored)["evaluations"] == expected


def test_a_training_with_one_evaluation_has_no_soup():
    facts = Facts(3576, 112, "inherited", 384)
    settings, chosen = hyperparameters.resolve(TrainerSettings.auto(max_steps=100, evaluations=1), facts)
    assert settings.soup == 1
    assert not {"soup", "ema"} & set(chosen)
    assert hyperparameters.resolve(TrainerSettings.auto(max_steps=113, evaluations=1), facts)[0].soup == 3


def test_the_options_of_a_training_on_raw_text_are_the_same_for_any_text():
    settings = hyperparameters.for_text(TrainerSettings.auto(soup=4))
    assert (settings.learning_rate, settings.max_epochs, settings.soup, settings.patience) == (1e-4, 2, 4, None)
    assert settings.unresolved() == []


@pytest.mark.parametrize(("start", "rate"), [(None, 1e-4), ("fresh", 5e-4), ("no_attention", 3e-3)])
def test_random_weights_learn_raw_text_with_a_higher_rate(start: str | None, rate: float):
    assert hyperparameters.for_text(TrainerSettings.auto(), start).learning_rate == rate
    assert hyperparameters.for_text(TrainerSettings.auto(learning_rate=1e-5), start).learning_rate == 1e-5


def test_options_that_were_not_chosen_are_refused():
    with pytest.raises(ValueError, match="learning_rate is auto, expected a value: "):
        TrainerSettings.auto().total_steps(4)
    assert d.TrainerSettings.auto().unresolved() == list(CHOSEN)


def test_a_teacher_is_fine_tuned_with_its_own_choices():
    settings, chosen = hyperparameters.resolve_finetuning(replace(TrainerSettings.auto(), ema=0.5), 3576, width=768)
    assert (settings.learning_rate, settings.max_epochs, settings.ema) == (5e-5, 11, 0.5)
    assert "ema" not in chosen
    assert hyperparameters.resolve_finetuning(SETTINGS, 3576, width=768) == (SETTINGS, {})


@pytest.mark.parametrize(
    ("examples", "scored", "epochs", "evaluations", "patience"),
    [
        (64, 16, 40, 1, 14),
        (500, 250, 40, 1, 14),
        (3_000, 300, 13, 2, 9),
        (3_000, 4_500, 13, 1, 5),
        (67_349, 872, 3, 3, None),  # Nine evaluations.
    ],
)
def test_a_teacher_gets_enough_steps_and_evaluations_to_stop_by(
    examples: int, scored: int, epochs: int, evaluations: float, patience: int | None
):
    settings, chosen = hyperparameters.resolve_finetuning(api.FINETUNE, examples, width=384, scored=scored)
    assert (settings.max_epochs, settings.evaluations, settings.patience) == (epochs, evaluations, patience)
    assert (settings.ema, settings.soup) == (0, 1)
    in_all = epochs * evaluations
    reason = f"a third of the {in_all:g} evaluations" if patience else f"{in_all:g} evaluations are too few to stop by"
    assert chosen["patience"] == {"value": patience, "reason": reason}


@pytest.mark.parametrize(
    ("start", "epochs", "patience", "reason"),
    [
        ("inherited", 17, 12, "a third of the 34 evaluations"),
        ("inherited", 3, None, "9 evaluations are too few to stop by"),
        ("fresh", 17, None, "layers that begin with random weights may improve late"),
        ("no_attention", 17, None, "layers that begin with random weights may improve late"),
    ],
)
def test_a_student_with_pre_trained_layers_stops_as_a_teacher_does(
    start: str, epochs: int, patience: int | None, reason: str
):
    settings, chosen = hyperparameters.resolve(
        TrainerSettings.auto(max_epochs=epochs), Facts(2_250, 141, start, 384, scored=250)
    )
    assert settings.patience == patience
    assert chosen["patience"] == {"value": patience, "reason": reason}


def test_the_patience_follows_from_given_evaluations():
    given = replace(api.FINETUNE, max_epochs=3, evaluations=6)
    assert hyperparameters.resolve_finetuning(given, 3000, width=384)[0].patience == 6  # A third of 18.
    given = replace(given, evaluations=1)
    assert hyperparameters.resolve_finetuning(given, 3000, width=384)[0].patience is None


def test_values_for_batches_of_tokens_must_be_given():
    settings = replace(api.FINETUNE, batch_tokens=4096, max_epochs=2)
    message = (
        "got teacher.finetune.learning_rate=auto with batch_tokens, whose steps are not known before, expected "
        "batch_size alone: set teacher.finetune.batch_tokens=null, or values such as "
        "teacher.finetune.learning_rate=5e-5 teacher.finetune.evaluations=1 teacher.finetune.patience=null"
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        hyperparameters.resolve_finetuning(settings, 3000, width=384)
    given = replace(settings, learning_rate=5e-5, evaluations=1, patience=None)
    assert hyperparameters.resolve_finetuning(given, 3000, width=384) == (given, {})
