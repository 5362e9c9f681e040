"""Text that the teacher labels by default (`auto`): how much of each source, within a budget of forward passes."""

from dataclasses import dataclass

AUTO = "auto"  # The value of task.unlabelled and of augment.
SHARE = 0.5  # Of the examples of an optimizer step that are unlabelled.
COPIES = 10  # Changed copies of a training row.
BANK_FACTOR = 8  # Sentences of a bank for a training row.
MOST_FROM_BANK = 30_000  # Sentences of a bank in all.
MOST_IN_BANK = 200_000  # Sentences of a bank that are encoded, evenly spaced among all.
BANK_ROOM = 0.5  # Share of the room that a bank has before the copies, 1 if copies come last.
CANDIDATES = 2  # Near sentences for each one that is taken, so that the predicted classes can be balanced.
TIME = 1.5  # The time of a run with further text, as a multiple of the time without.
BACKWARD = 3  # Forward passes that take as long as a forward and a backward pass.
# The best measured reason to give text, for a run that has none (docs/results.md).
GAIN = "on 500 rows of SST-2, 30,000 sentences of film reviews raised a student's accuracy from 0.806 to 0.816"


@dataclass(frozen=True)
class Room:
    """The room for texts that only the teacher labels.

    Args:
        passes: forward passes of the teacher for one text each, within the budget of time.
        shown: unlabelled examples that the training shows, each of which may be a text of its own.
    """

    passes: int
    shown: int

    def without(self, texts: int, *, passes: int = 1) -> "Room":
        """Returns the room beside so many texts, each with so many forward passes."""
        return Room(max(0, self.passes - texts * passes), max(0, self.shown - texts))

    def fits(self, *, passes: int = 1) -> int:
        """Returns the number of texts that fit, each with so many forward passes."""
        return min(self.passes // passes, self.shown)


@dataclass(frozen=True)
class Amounts:
    """The amounts of text of the sources that may be left out.

    Args:
        copies: changed copies of each training row.
        sentences: sentences of the bank.
        wanted_copies: the copies without a budget.
        wanted_sentences: the sentences without a budget.
    """

    copies: int
    sentences: int
    wanted_copies: int
    wanted_sentences: int

    def describe_left_out(self) -> str | None:
        """Describes what does not fit, None if everything does."""
        left_out = [
            f"{wanted - taken:,} of {wanted:,} {name}"
            for taken, wanted, name in (
                (self.copies, self.wanted_copies, "copies of each row"),
                (self.sentences, self.wanted_sentences, "sentences of the bank"),
            )
            if taken < wanted
        ]
        return " and ".join(left_out) or None


def measure_room(*, rows: int, student: int, mixed: int, teacher: int, layers: float, share: float) -> Room:
    """Returns the room for further text beside a run whose work is counted in forward passes of the teacher.

    The measure is the number of texts and layers, and never a measured time, so that the same command makes the same
    data. The steps that mixing adds to a fixed number of epochs are not counted.

    Args:
        rows: labelled rows, whose outputs the teacher computes once.
        student: examples that the student's training shows without further text.
        mixed: those with it.
        teacher: examples that the teacher's fine-tuning shows, 0 without one.
        layers: the student's layers as a share of the teacher's.
        share: of unlabelled examples in a step.
    """
    work = rows + BACKWARD * (teacher + layers * student)
    return Room(int((TIME - 1) * work), int(mixed * share))


def choose_amounts(room: Room, *, rows: int, copies: bool, bank: int) -> Amounts:
    """Returns the amounts that fit: copies first, and a bank, which has `BANK_ROOM` of the room if it can fill it.

    Args:
        room: beside the rows that the pool has already.
        rows: labelled rows.
        copies: whether copies are made.
        bank: sentences of the bank, 0 without one.
    """
    cost = 1 + CANDIDATES  # The teacher predicts the class of each candidate.
    wanted_copies = COPIES if copies else 0
    wanted = min(BANK_FACTOR * rows, MOST_FROM_BANK, bank)
    reserved = min(wanted, Room(int(BANK_ROOM * room.passes), int(BANK_ROOM * room.shown)).fits(passes=cost))
    of_each = min(wanted_copies, room.without(reserved, passes=cost).fits() // rows)
    sentences = min(wanted, room.without(of_each * rows).fits(passes=cost))
    return Amounts(of_each, sentences, wanted_copies, wanted)
