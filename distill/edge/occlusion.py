"""Which words a prediction rests on, by leaving each of them out: the model runs once more for every word."""

from typing import TYPE_CHECKING, Any, TypedDict

from distill.edge.words import split_words
from distill.errors import UserError

if TYPE_CHECKING:
    from distill.edge.bundle import Bundle


class WordEffect(TypedDict):
    """What a word adds to the probability of the predicted class.

    Attributes:
        start, end: of the word in the text, in code points.
        effect: the probability with the word minus that without it.
    """

    word: str
    start: int
    end: int
    effect: float


class Explanation(TypedDict):
    """A prediction, and the effect of each word on the probability of its class (arXiv 1311.2901, section 4.2)."""

    label: str
    probability: float
    words: list[WordEffect]


def explain(bundle: "Bundle", text: str, *, batch_size: int | None = None) -> Explanation:
    """Returns the most likely class of a text, and what the probability loses without each word.

    Gradients would be faster, but an exported file has none.

    Raises:
        UserError: for a bundle that gives texts no classes.
    """
    if bundle.decoder.fields != ("label", "probability", "probabilities") or bundle.manifest.get("pair"):
        raise UserError(
            f"a {bundle.manifest['kind']} bundle has no words to explain: expected one that gives single texts a class"
        )
    spans = split_words(text)
    texts = [text, *(f"{text[:start]}{text[end:]}".strip() or " " for start, end in spans)]
    whole, *others = _probabilities(bundle, texts, batch_size)
    label = max(whole, key=lambda name: whole[name])
    words: list[WordEffect] = [
        {"word": text[start:end], "start": start, "end": end, "effect": whole[label] - without[label]}
        for (start, end), without in zip(spans, others, strict=True)
    ]
    return {"label": label, "probability": whole[label], "words": words}


def _probabilities(bundle: "Bundle", texts: list[str], batch_size: int | None) -> list[dict[str, Any]]:
    return [prediction["probabilities"] for prediction in bundle.predict(texts, batch_size=batch_size)]
