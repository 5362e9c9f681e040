"""Tests of the numbers of an inspection against values by hand, on weights and states that are known."""

import base64
import zlib

import numpy as np
import pytest
import torch

from distill.errors import UserError
from distill.inspection.contexts import Occurrence, find_occurrences, nearest
from distill.inspection.groups import find_lost_groups, text_groups
from distill.inspection.heads import HeadStatistics
from distill.inspection.probes import Mix, Probed, control_labels, mix_layers, probe_layers
from distill.inspection.relations import word_attention
from distill.inspection.similarity import compare_layers, linear_cka
from distill.inspection.view import LEVELS, AttentionView

IDS = torch.tensor([[101, 7, 8, 9, 102]])  # [CLS] a b c [SEP]
WORDS = torch.tensor([[False, True, True, True, False]])


def attention(*rows: list[float]) -> torch.Tensor:
    return torch.tensor([[list(rows)]])  # One sentence, one head.


def measure(*layers: torch.Tensor, frequencies: torch.Tensor | None = None) -> HeadStatistics:
    statistics = HeadStatistics(frequencies)
    statistics.add(layers, IDS, WORDS)
    return statistics


def test_a_head_that_looks_at_the_token_before() -> None:
    weights = attention(
        [1, 0, 0, 0, 0], [0.8, 0.2, 0, 0, 0], [0, 0.9, 0.1, 0, 0], [0, 0, 0.7, 0.1, 0.2], [0, 0, 0, 1, 0]
    )
    [head] = measure(weights).heads()
    assert (head.layer, head.head) == (1, 1)
    assert head.confidence == pytest.approx((0.2 + 0.9 + 0.7) / 3)  # Without the weight on [CLS].
    assert head.separator == pytest.approx((0.8 + 0.0 + 0.2) / 3)
    assert head.distance == pytest.approx((0.8 + 0.9 + 0.7 + 0.2) / 3)
    rows = [[0.8, 0.2], [0.9, 0.1], [0.7, 0.1, 0.2]]
    assert head.entropy == pytest.approx(np.mean([-sum(p * np.log(p) for p in row) for row in rows]), abs=1e-6)
    assert (head.offset, head.positional) == (-1, pytest.approx(2 / 3))
    assert not head.is_positional


def test_batches_of_other_lengths_share_their_offsets() -> None:
    before = torch.diag_embed(torch.ones(4), offset=-1)[None, None]
    before[0, 0, 0, 0] = 1
    statistics = measure(before)
    short = torch.eye(2)[[0, 0]][None, None]  # The second token looks at the first one.
    statistics.add([short], torch.tensor([[7, 8]]), torch.tensor([[True, True]]))
    [head] = statistics.heads()
    # Of five queries the first word of the long sentence sees only [CLS], which is special, and the first of the short
    # one itself. Of equal weights the first key counts.
    assert (head.offset, head.positional) == (-1, pytest.approx(3 / 5))


def test_a_head_that_looks_at_the_rarest_token() -> None:
    frequencies = torch.full((200,), 50)
    frequencies[8] = 2
    weights = attention(*[[0, 0.1, 0.9, 0, 0]] * 3, [0, 0.6, 0.4, 0, 0], [1, 0, 0, 0, 0])
    [head] = measure(weights, frequencies=frequencies).heads()
    assert head.rare == pytest.approx(2 / 3)  # Of the queries a, b and c the last one looks at a.


def test_no_batch_has_no_heads() -> None:
    with pytest.raises(ValueError, match="got no batch, expected at least one"):
        HeadStatistics().heads()


def test_cka_of_rotated_scaled_and_unrelated_states() -> None:
    random = np.random.default_rng(0)
    states = random.normal(size=(500, 6))
    rotation = np.linalg.qr(random.normal(size=(6, 6)))[0]
    assert linear_cka(states, 3 * states @ rotation + 5) == pytest.approx(1.0)
    assert linear_cka(states, random.normal(size=(500, 6))) < 0.05
    assert linear_cka(states, np.zeros((500, 2))) == 0.0
    # Two columns of one deviation each, of which the other model has the first: 1 / sqrt(2) by the definition.
    apart = np.array([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    assert linear_cka(apart, apart[:, :1]) == pytest.approx(1 / np.sqrt(2))
    with pytest.raises(ValueError, match="got states of 4 and 3 items"):
        linear_cka(apart, apart[:3])


def test_cka_of_all_layers() -> None:
    random = np.random.default_rng(0)
    first, second = random.normal(size=(2, 300, 4))
    found = compare_layers([first, second], [second, first, first])
    assert found.shape == (2, 3)
    assert (found > 0.9).tolist() == [[False, True, True], [True, False, False]]


def planted(layer: int, rows: int = 400) -> Probed:
    """Returns states of four layers of which one says the label, and random labels."""
    random = np.random.default_rng(0)
    labels = random.integers(2, size=rows)
    states = random.normal(size=(4, rows, 8))
    states[layer, :, 3] += 6 * labels
    half, texts = rows // 2, [str(row) for row in range(rows)]
    control = control_labels(texts[:half], texts[half:], 2, seed=1)
    return Probed(list(states[:, :half]), labels[:half], list(states[:, half:]), labels[half:], control)


@pytest.mark.parametrize("layer", [0, 2])
def test_a_planted_label_is_found_in_its_layer(layer: int) -> None:
    probed = planted(layer)
    probes = probe_layers(probed)
    assert [probe.accuracy > 0.95 for probe in probes] == [number == layer for number in range(4)]
    assert all(probe.control < 0.65 for probe in probes)
    assert probes[layer].selectivity == pytest.approx(probes[layer].accuracy - probes[layer].control)
    mix = mix_layers(probed)
    assert mix is not None
    assert np.argmax(mix.weights) == layer
    assert mix.accuracy > 0.95
    assert sum(mix.weights) == pytest.approx(1.0)


def test_the_centre_of_gravity_is_the_expected_layer() -> None:
    assert Mix([0.5, 0.0, 0.25, 0.25], 1.0).centre == pytest.approx(0.25 * 2 + 0.25 * 3)


def test_fewer_rows_than_the_width_are_refused() -> None:
    probed = planted(0, rows=12)
    with pytest.raises(UserError, match=r"states of 8 numbers would fit any labels of 6 rows: .* inspect.probes=false"):
        probe_layers(probed)


def test_random_labels_are_the_same_for_the_same_word() -> None:
    learn, score = control_labels(["to", "from", "to"], ["from", "to"], 50, seed=0)
    assert learn[0] == learn[2] == score[1]
    assert learn[1] == score[0] != learn[0]


def test_a_group_that_loses_more_is_told_from_one_that_does_not() -> None:
    teacher, student = np.ones(400), np.ones(400)
    planted, other = np.arange(400) < 100, np.arange(400) % 2 == 0
    student[:60] = 0  # All in the planted group.
    few = np.arange(400) < 10
    groups = find_lost_groups(
        teacher, student, {("kind", "planted"): planted, ("kind", "every second"): other, ("kind", "few"): few}
    )
    assert [group.name for group in groups] == ["planted", "every second"]
    first, second = groups
    assert (first.number, first.teacher, first.student, first.lost) == (100, 1.0, 0.4, 0.6)
    assert first.excess == pytest.approx(0.6)
    assert first.loses_more
    assert not second.loses_more
    [better] = find_lost_groups(student, teacher, {("kind", "others"): ~planted})
    assert better.interval[0] > 0
    assert not better.loses_more  # It gains nothing where the planted group gains.
    assert second.interval[0] < 0 < second.interval[1]


def test_more_comparisons_widen_the_intervals() -> None:
    student = (np.arange(200) % 5 != 0).astype(float)
    members = {("kind", "half"): np.arange(200) < 100}
    [one] = find_lost_groups(np.ones(200), student, members)
    [many] = find_lost_groups(np.ones(200), student, members, comparisons=20)
    assert many.interval[0] < one.interval[0] < one.interval[1] < many.interval[1]


def test_texts_are_grouped_by_length_negation_and_unknown_words() -> None:
    texts = ["a film", "It isn't good", "I did not like this long film at all", "a zebra"]
    groups = text_groups(texts, ["A film, it is good. I did not like this long film at all; isn t"])
    assert groups["negation", "with a negation"].tolist() == [False, True, True, False]
    assert groups["words", "with a word that train lacks"].tolist() == [False, False, False, True]
    lengths = [of for (kind, _), of in groups.items() if kind == "length"]
    assert np.sum(lengths, axis=0).tolist() == [1, 1, 1, 1]


def test_words_look_at_words_by_sum_and_mean() -> None:
    weights = np.array([[[[1.0, 0, 0, 0], [0.5, 0.1, 0.2, 0.2], [0.1, 0.3, 0.4, 0.2], [0, 0.6, 0.4, 0]]]])
    found = word_attention(weights, [None, 0, 0, 1], 2)  # [CLS] and a word of two pieces before one of one piece.
    assert found[0, 0] == pytest.approx(np.array([[(0.3 + 0.7) / 2, (0.2 + 0.2) / 2], [1.0, 0.0]]))


def test_the_nearest_occurrences_have_the_largest_cosines() -> None:
    states = np.array([[1.0, 0], [0, 1], [2, 0.1], [-1, 0]])
    assert [place for place, _ in nearest(states, 0)] == [2, 1, 3]
    assert nearest(states, 0)[0][1] == pytest.approx(2 / np.hypot(2, 0.1))


def test_a_word_is_found_whole_and_in_any_case() -> None:
    texts = ["They play.", "A display", "Play on", "the play"]
    assert find_occurrences("play", texts) == [
        Occurrence("They play.", 5, 9),
        Occurrence("Play on", 0, 4),
        Occurrence("the play", 4, 8),
    ]
    assert Occurrence("They play.", 5, 9).shown() == "They [play]."
    with pytest.raises(UserError, match=r"inspect\.word=zebra is in 0 of 4 texts"):
        find_occurrences("zebra", texts)


def test_a_view_keeps_weights_to_its_levels() -> None:
    weights = torch.rand(2, 3, 4, 4).softmax(dim=-1)
    view = AttentionView.of(list(weights), ["a", "b", "c", "d"])
    assert (view.layers, view.heads) == (2, 3)
    assert np.abs(view.weights / LEVELS - weights.numpy()).max() <= 0.5 / LEVELS
    encoded = zlib.decompress(base64.b64decode(view.encode()["weights"]))
    assert encoded == bytes(view.weights.ravel().tolist())
