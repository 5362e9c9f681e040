"""Tests of the order of texts with numbers in them."""

from distill.rows.labels import natural_key, sort_classes


def test_classes_that_are_numbers_are_in_the_order_of_their_values() -> None:
    assert sort_classes(["10", "1", "9", "-1", "2.5", "2"]) == ["-1", "1", "2", "2.5", "9", "10"]
    assert sort_classes(str(stars) for stars in range(10, 0, -1)) == [str(stars) for stars in range(1, 11)]
    assert sort_classes(["1", "01", "1.0"]) == ["01", "1", "1.0"]


def test_numbers_in_names_count_by_their_values() -> None:
    assert sort_classes(["10 stars", "9 stars", "no stars", "1 star"]) == ["1 star", "9 stars", "10 stars", "no stars"]
    assert sort_classes(["no", "a", "10", "9"]) == ["9", "10", "a", "no"]
    labels = ["temperature=10 weight=1", "temperature=2.5", "temperature=2", "layers=3"]
    assert sorted(labels, key=natural_key) == [
        "layers=3",
        "temperature=2",
        "temperature=2.5",
        "temperature=10 weight=1",
    ]
    assert sort_classes([]) == []
