"""Tests of the numbers of an inspection against values by hand, on weights and states that are known."""

import base64
import zlib

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from benchmarks.false_losses import KINDS, share_of_false_losses
from distill.core.errors import UserError
from distill.inspection import probes, subjects
from distill.inspection.inspection import word_attention

IDS = torch.tensor([[101, 7, 8, 9, 102]])  # [CLS] a b c [SEP]
WORDS = torch.tensor([[False, True, True, True, False]])


def attention(*rows: list[float]) -> torch.Tensor:
    return torch.tensor([[list(rows)]])  # One sentence, one head.


def measure(*layers: torch.Tensor, frequencies: torch.Tensor | None = None) -> subjects.HeadStatistics:
    statistics = subjects.HeadStatistics(frequencies)
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
    with pytest.raises(ValueError, match="got no batch, expected at least one"):
        subjects.HeadStatistics().heads()
    frequencies = torch.full((200,), 50)
    frequencies[8] = 2
    weights = attention(*[[0, 0.1, 0.9, 0, 0]] * 3, [0, 0.6, 0.4, 0, 0], [1, 0, 0, 0, 0])
    [head] = measure(weights, frequencies=frequencies).heads()
    assert head.rare == pytest.approx(2 / 3)  # Of the queries a, b and c the last one looks at a.


def test_cka_of_rotated_scaled_and_unrelated_states() -> None:
    random = np.random.default_rng(0)
    states = random.normal(size=(500, 6))
    rotation = np.linalg.qr(random.normal(size=(6, 6)))[0]
    assert subjects.linear_cka(states, 3 * states @ rotation + 5) == pytest.approx(1.0)
    assert subjects.linear_cka(states, np.zeros((500, 2))) == 0.0
    # Two columns of one deviation each, of which the other model has the first: 1 / sqrt(2) by the definition.
    apart = random.normal(size=(4000, 2))
    assert subjects.linear_cka(apart, apart[:, :1]) == pytest.approx(1 / np.sqrt(2), abs=0.02)
    first, second = random.normal(size=(2, 300, 4))
    found = subjects.compare_layers([first, second], [second, first, first])
    assert (found > 0.9).tolist() == [[False, True, True], [True, False, False]]
    with pytest.raises(ValueError, match="got states of 4000 and 3 items"):
        subjects.linear_cka(apart, apart[:3])
    with pytest.raises(UserError, match="states of at least 4 items, and the split has 3"):
        subjects.compare_layers([apart[:3]], [apart[:3]])


def test_unrelated_states_of_few_rows_have_no_cka() -> None:
    """The estimate that centres the products is above 0.6 for these."""
    random, rows = np.random.default_rng(0), 60
    found = [subjects.linear_cka(*random.normal(size=(2, rows, 384))) for _ in range(20)]
    assert abs(np.mean(found)) < 0.02
    x, y = random.normal(size=(2, rows, 7)) + 1
    assert subjects.linear_cka(x, x + 2 * y) == pytest.approx(debiased_by_products(x, x + 2 * y))


def debiased_by_products(x: np.ndarray, y: np.ndarray) -> float:
    """Returns the CKA by the sums of arXiv 2010.15327, equation 3, over the products of all pairs of items."""
    n, ones = len(x), np.ones(len(x))

    def hsic(k: np.ndarray, m: np.ndarray) -> float:
        means = (ones @ k @ ones) * (ones @ m @ ones) / ((n - 1) * (n - 2)) - 2 / (n - 2) * (ones @ k @ m @ ones)
        return float((np.trace(k @ m) + means) / (n * (n - 3)))

    k, m = (of @ of.T * (1 - np.eye(n)) for of in (x, y))
    return hsic(k, m) / float(np.sqrt(hsic(k, k) * hsic(m, m)))


def planted(layer: int, rows: int = 400) -> probes.Probed:
    """Returns states of four layers of which one says the label, and random labels."""
    random = np.random.default_rng(0)
    labels = random.integers(2, size=rows)
    states = random.normal(size=(4, rows, 8))
    states[layer, :, 3] += 6 * labels
    half, words = rows // 2, [str(row) for row in range(rows)]
    control = probes.control_labels(words[:half], words[half:], labels[:half], seed=1)
    return probes.Probed(list(states[:, :half]), labels[:half], list(states[:, half:]), labels[half:], control)


def test_a_planted_label_is_found_in_its_layer() -> None:
    probed = planted(layer=2)
    found = probes.probe_layers(probed)
    assert [probe.accuracy > 0.95 for probe in found] == [False, False, True, False]
    controls = [probe.control or 0.0 for probe in found]
    assert max(controls) < 0.65
    assert found[2].selectivity == pytest.approx(found[2].accuracy - controls[2])
    mix = probes.mix_layers(probed)
    assert mix is not None
    assert np.argmax(mix.weights) == 2
    assert mix.accuracy > 0.95
    assert sum(mix.weights) == pytest.approx(1.0)


def test_the_centre_of_gravity_is_the_expected_layer() -> None:
    assert probes.Mix([0.5, 0.0, 0.25, 0.25], 1.0).centre == pytest.approx(0.25 * 2 + 0.25 * 3)
    message = r"states of 8 numbers would fit any labels of 6 rows: .* inspect.probes=false"
    with pytest.raises(UserError, match=message):
        probes.probe_layers(planted(0, rows=12))


def test_random_labels_are_the_same_for_the_same_word() -> None:
    learn, score = probes.control_labels(["to", "from", "to"], ["from", "to"], np.arange(50), seed=0)
    assert learn[0] == learn[2] == score[1]
    assert learn[1] == score[0] != learn[0]
    assert probes.control_labels(["to", "from"], (), np.arange(50), seed=1)[0].tolist() != learn[:2].tolist()


def test_random_labels_are_as_frequent_as_those_of_the_task() -> None:
    labels = np.repeat([0, 1, 2], [18, 0, 2])
    drawn, _ = probes.control_labels(range(4000), (), labels, seed=0)
    assert np.bincount(drawn, minlength=3) / 4000 == pytest.approx([0.9, 0.0, 0.1], abs=0.02)


def test_states_that_know_nothing_are_no_better_than_random_labels_of_words() -> None:
    """Uniform random labels would be hard to learn, and the most frequent label easy: a difference of 0.4."""
    random = np.random.default_rng(0)
    words = random.integers(400, size=3000)
    labels = (random.random(3000) < 0.1).astype(int)
    states, (learn, score) = random.normal(size=(3000, 8)), (slice(2000), slice(2000, None))
    control = probes.control_labels(words[learn].tolist(), words[score].tolist(), labels[learn], seed=0)
    [probe] = probes.probe_layers(
        probes.Probed([states[learn]], labels[learn], [states[score]], labels[score], control)
    )
    assert probe.majority == pytest.approx((labels[score] == 0).mean())
    assert probe.accuracy == pytest.approx(probe.majority, abs=0.01)
    assert probe.selectivity == pytest.approx(0, abs=0.05)


def test_the_states_of_the_other_split_are_scaled_as_those_of_train() -> None:
    """All items of the other split are of one class, so that their own mean would hide it."""
    random = np.random.default_rng(0)
    labels = np.arange(201) % 2
    train, test = random.normal(size=(201, 4)), random.normal(size=(100, 4))
    train[:, 1] += 8 * labels
    test[:, 1] += 8
    [probe] = probes.probe_layers(probes.Probed([train], labels, [test], np.ones(100, dtype=int), None))
    assert probe.accuracy > 0.95
    assert probe.majority == 0  # Of the other class, which is the most frequent one of train.
    assert probe.selectivity is None


def test_the_regularisation_is_the_best_on_held_out_items() -> None:
    """A weak sign in each of 40 numbers, of 100 rows: without much regularisation the probe learns noise."""
    random = np.random.default_rng(3)
    labels = np.arange(100) % 2
    states = random.normal(size=(100, 40)) + 0.35 * labels[:, None]
    [probe] = probes.probe_layers(probes.Probed([states], labels, [states], labels, None))
    held = probes.hold_out(np.arange(100), 0.2, seed=0)
    scaled = (states - states.mean(axis=0)) / states.std(axis=0)
    scores = {
        penalty: LogisticRegression(C=penalty, max_iter=200, tol=1e-3)
        .fit(scaled[~held], labels[~held]).score(scaled[held], labels[held])
        for penalty in probes.PENALTIES
    }  # fmt: skip
    assert scores[probe.penalty] == max(scores.values()) > min(scores.values())


def test_whole_texts_are_held_out() -> None:
    texts = np.repeat(np.arange(40), np.arange(40) % 7 + 1)
    held = probes.hold_out(texts, 0.2, seed=0)
    assert set(texts[held]).isdisjoint(texts[~held])
    assert held.mean() == pytest.approx(0.2, abs=0.04)
    assert probes.hold_out(texts, 0.2, seed=1).tolist() != held.tolist()
    assert probes.hold_out(np.zeros(5), 0.2, seed=0).all()


def test_a_group_that_loses_more_is_told_from_one_that_does_not() -> None:
    teacher, student = np.ones(400), np.ones(400)
    planted, other = np.arange(400) < 100, np.arange(400) % 2 == 0
    student[:60] = 0  # All in the planted group.
    few = np.arange(400) < 10
    groups = subjects.find_lost_groups(
        teacher, student, {("kind", "planted"): planted, ("kind", "every second"): other, ("kind", "few"): few}
    )
    assert [group.name for group in groups] == ["planted", "every second"]
    first, second = groups
    assert (first.number, first.teacher, first.student, first.lost) == (100, 1.0, 0.4, 0.6)
    assert first.excess == pytest.approx(0.6)
    assert first.loses_more
    assert not second.loses_more
    [better] = subjects.find_lost_groups(student, teacher, {("kind", "others"): ~planted})
    assert better.interval[0] > 0
    assert not better.loses_more  # It gains nothing where the planted group gains.
    assert second.interval[0] < 0 < second.interval[1]


def test_more_comparisons_widen_the_intervals() -> None:
    student = (np.arange(200) % 5 != 0).astype(float)
    members = {("kind", "half"): np.arange(200) < 100}
    [one] = subjects.find_lost_groups(np.ones(200), student, members)
    [many] = subjects.find_lost_groups(np.ones(200), student, members, comparisons=20)
    assert many.interval[0] < one.interval[0] < one.interval[1] < many.interval[1]


def test_words_of_a_text_are_lost_together() -> None:
    """No group loses more. A bootstrap over words would name one in three of four of these."""
    assert share_of_false_losses(KINDS[2], 90, times=40, by_text=True) <= 0.05
    assert share_of_false_losses(KINDS[2], 90, times=10, by_text=False) > 0.3


def test_a_side_without_a_loss_still_has_a_spread() -> None:
    """Two of 180 answers are lost, and none of the other 20."""
    inside = np.arange(200) < 180
    [group] = subjects.find_lost_groups(np.ones(200), (np.arange(200) > 1).astype(float), {("kind", "most"): inside})
    assert group.excess == pytest.approx(2 / 180)
    assert not group.loses_more
    assert group.interval[1] - group.interval[0] > 0.2  # By the two texts that are added to each side.
    # Nothing is lost at all.
    [same] = subjects.find_lost_groups(np.ones(200), np.ones(200), {("kind", "most"): inside})
    assert same.interval[0] < 0 < same.interval[1]
    assert not same.loses_more


def test_a_group_of_few_texts_is_left_out() -> None:
    texts, random = np.repeat(np.arange(60), 10), np.random.default_rng(0)
    inside = {("kind", "19"): texts < 19, ("kind", "20"): texts < 20, ("kind", "40 others"): texts >= 20}
    student = (random.random(600) < 0.8).astype(float)
    groups = subjects.find_lost_groups(np.ones(600), student, inside, texts=texts)
    assert {group.name: (group.number, group.texts) for group in groups} == {"20": (200, 20), "40 others": (400, 40)}


def test_texts_are_grouped_by_length_negation_and_unknown_words() -> None:
    texts = ["a film", "It isn't good", "I did not like this long film at all", "a zebra"]
    groups = subjects.text_groups(texts, ["A film, it is good. I did not like this long film at all; isn t"])
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
    assert [place for place, _ in probes.nearest(states, 0)] == [2, 1, 3]
    assert probes.nearest(states, 0)[0][1] == pytest.approx(2 / np.hypot(2, 0.1))


def test_a_word_is_found_whole_and_in_any_case() -> None:
    texts = ["They play.", "A display", "Play on", "the play"]
    assert probes.find_occurrences("play", texts) == [
        probes.Occurrence("They play.", 5, 9),
        probes.Occurrence("Play on", 0, 4),
        probes.Occurrence("the play", 4, 8),
    ]
    assert probes.Occurrence("They play.", 5, 9).shown() == "They [play]."
    with pytest.raises(UserError, match=r"inspect\.word=zebra is in 0 of 4 texts"):
        probes.find_occurrences("zebra", texts)


def test_a_view_keeps_weights_to_its_levels() -> None:
    weights = torch.rand(2, 3, 4, 4).softmax(dim=-1)
    view = subjects.AttentionView.of(list(weights), ["a", "b", "c", "d"])
    assert view.weights.shape[:2] == (2, 3)
    assert np.abs(view.weights / subjects.LEVELS - weights.numpy()).max() <= 0.5 / subjects.LEVELS
    encoded = zlib.decompress(base64.b64decode(view.encode()["weights"]))
    assert encoded == bytes(view.weights.ravel().tolist())
