"""The HTML in the page of an inspection that is no Markdown: views of attention, and sentences with coloured words."""

import json
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from distill.inspection.attributions import Attribution
from distill.inspection.inspection import Inspection

_ADDS, _TAKES = "57, 135, 229", "235, 104, 52"  # Colours of words.


def render_attention(inspection: Inspection) -> Markup | None:
    models = [of for of in inspection.models if of.views]
    if not models:
        return None
    content = {
        "sentences": list(inspection.sentences),
        "models": [{"name": of.subject.name, "views": [view.encode() for view in of.views]} for of in models],
    }  # fmt: skip
    data = json.dumps(content).replace("<", "\\u003c")  # No end of the script can be in it.
    return Markup(_templates().get_template("attention.html.jinja").render(data=Markup(data)))


def render_words(inspection: Inspection) -> Markup | None:
    """Returns the shown sentences with their words coloured by what they add to the logit of the prediction."""
    asked = [of for of in inspection.models if of.attributions]
    if not asked:
        return None
    sentences = [
        [{"name": of.subject.name, "words": _colour_words(of.attributions[number])} for of in asked]
        for number in range(len(asked[0].attributions))
    ]
    return Markup(_templates().get_template("words.html.jinja").render(sentences=sentences))


def _colour_words(found: Attribution) -> list[dict[str, Any]]:
    strongest = max(map(abs, found.integrated), default=0.0) or 1.0
    return [
        {
            "text": word, "title": f"{value:+.2f}",
            "style": f"background: rgba({_ADDS if value >= 0 else _TAKES}, {0.45 * abs(value) / strongest:.2f})"
            + ("; border-bottom: 2px dotted" if value < 0 else ""),
        }
        for word, value in zip(found.words, found.integrated, strict=True)
    ]  # fmt: skip


@cache
def _templates() -> Environment:
    return Environment(loader=PackageLoader("distill.inspection"), autoescape=True, undefined=StrictUndefined)
