"""The page `/docs`: the interface (OpenAPI) as one HTML page without scripts, so that it needs no other host.

FastAPI's own page loads Swagger UI from a content delivery network. Its files in a package would be 8 MB for a handful
of paths, which a page of plain HTML lists as well, and `/` is the page to try the models with.
"""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

Schema = Mapping[str, Any]
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
  :root {{ color-scheme: light dark; --line: #8885; --band: #8882; }}
  body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }}
  h1 {{ font-size: 1.4rem; }}
  h2 {{ font-size: 1.1rem; margin: 2rem 0 .25rem; padding-top: .75rem; border-top: 1px solid var(--line); }}
  code, pre {{ font: .875em/1.45 ui-monospace, monospace; }}
  pre {{ padding: .75rem 1rem; background: var(--band); overflow-x: auto; }}
</style>
<main>
<h1>{title}</h1>
<p>{description}</p>
<p><a href="./">Another page</a> is there to try the models, <a href="openapi.json">openapi.json</a> for programs.</p>
{paths}
</main>
</html>
"""
_PATH = """<section>
<h2><code>{method} {path}</code></h2>
<p>{summary}.</p>
{details}
</section>"""


def render_documentation(schema: Schema, *, address: str) -> str:
    """Returns the page of an interface.

    Args:
        schema: of OpenAPI.
        address: of the server, in the commands of the page.
    """
    paths = [
        _describe_path(method, path, operation, address.rstrip("/"))
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]
    info = schema["info"]
    return _PAGE.format(
        title=escape(f"{info['title']} {info['version']}"), description=escape(info.get("description", "")),
        paths="\n".join(paths),
    )  # fmt: skip


def _describe_path(method: str, path: str, operation: Schema, address: str) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    details = [_describe_body(kind, media) for kind, media in content.items()]
    details.append(f'<pre tabindex="0">{escape(_write_command(f"{address}{path}", content))}</pre>')
    return _PATH.format(
        method=escape(method.upper()), path=escape(path), summary=escape(operation.get("summary", "")),
        details="\n".join(details),
    )  # fmt: skip


def _describe_body(kind: str, media: Schema) -> str:
    """Returns the fields of a body as a list, below its description."""
    schema = media["schema"]
    fields = [
        f"<li><code>{escape(name)}</code>: {escape(_describe_type(of))}</li>"
        for name, of in schema.get("properties", {}).items()
    ]
    words = f"The body is {kind}. {schema.get('description', '')}".strip()
    return f"<p>{escape(words)}</p>\n<ul>\n" + "\n".join(fields) + "\n</ul>"


def _describe_type(schema: Schema) -> str:
    """Returns a type in words: `array of string`."""
    words = str(schema.get("type", "any value"))
    if schema.get("items"):
        words += f" of {_describe_type(schema['items'])}"
    if schema.get("minItems"):
        words += f", {schema['minItems']} of them"
    return words + (f" ({schema['description']})" if "description" in schema else "")


def _write_command(address: str, content: Schema) -> str:
    """Returns the command that sends the example of a body."""
    body = next((media["example"] for media in content.values() if "example" in media), None)
    if body is None:
        return f"curl {address}"
    return f"curl {address} -H 'Content-Type: {next(iter(content))}' -d '{json.dumps(body)}'"
