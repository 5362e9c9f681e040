"""The page of the service, and the policy that a browser holds it to."""

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

# Nothing is loaded from elsewhere, no other page frames it, and no text becomes markup or code.
_POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


@dataclass(frozen=True)
class Page:
    """A page and its policy.

    Attributes:
        html: with one script and one style, inline.
        policy: the value of the header `Content-Security-Policy`, which allows these two by their hashes.
    """

    html: str
    policy: str


@cache
def load_page() -> Page:
    """Returns the page of the service, the same for every request."""
    html = files("distill.service").joinpath("page.html").read_text(encoding="utf-8")
    return Page(html, _POLICY.format(script=_hash(html, "script"), style=_hash(html, "style")))


def _hash(html: str, tag: str) -> str:
    """Returns the source expression of the only element of a tag (Content Security Policy 3, section 2.3.1)."""
    [content] = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
