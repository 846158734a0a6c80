#!/usr/bin/env python3
"""Writes chat_templates.json: what jinja2, set up as Hugging Face sets it up, renders for our test templates.

  python3 -m venv /tmp/venv && /tmp/venv/bin/pip install jinja2==3.1.6
  /tmp/venv/bin/python tests/golden/make_chat_template_goldens.py

The templates in chat_template_sources/ and templates/ are ours: they use the constructs of the model families they are
named after; those in templates/ are also given to models.
Output: {"sources": {name: template}, "contexts": {name: context}, "cases": [{"template", "context", "options",
"output"}], "units": [{"template", "output"}]}. An output of null means that jinja2 raised an error.
"""

import json
import pathlib

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from chat_template_conversations import CONVERSATIONS, OPTIONS
from chat_template_units import UNIT_CONTEXT, UNITS

HERE = pathlib.Path(__file__).parent


class Generation(Extension):
    """{% generation %}: marks what the assistant said; the rendered text is as if it were not there."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def raise_exception(message):
    raise TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def make_environment():
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda fmt: "2026-11-30"
    return environment


def render(environment, source, context):
    try:
        text = environment.from_string(source).render(**context)
        text.encode("utf-8")
        return text
    except Exception as error:  # whatever it is, a server must report it, so the golden is "an error"
        if type(error) in (ImportError, NameError, KeyboardInterrupt):
            raise
        return None


def main():
    environment = make_environment()
    files = [p for folder in ("chat_template_sources", "templates") for p in (HERE / folder).glob("*.jinja")]
    sources = {p.stem: p.read_text() for p in sorted(files, key=lambda p: p.stem)}
    cases = []
    for name, source in sources.items():
        for conversation, context in CONVERSATIONS.items():
            for option, extra in OPTIONS.items():
                # Every option with the first conversations, one or two with the others: keeps the file small.
                if option != "generate" and conversation not in ("plain", "history_reasoning"):
                    continue
                output = render(environment, source, {**context, **extra})
                cases.append({"template": name, "context": conversation, "options": option, "output": output})
    units = [{"template": u, "output": render(environment, u, UNIT_CONTEXT)} for u in UNITS]
    goldens = {
        "generated_by": "tests/golden/make_chat_template_goldens.py with jinja2 3.1.6",
        "sources": sources,
        "contexts": CONVERSATIONS,
        "options": OPTIONS,
        "cases": cases,
        "unit_context": UNIT_CONTEXT,
        "units": units,
    }
    (HERE / "chat_templates.json").write_text(json.dumps(goldens, ensure_ascii=False, indent=1) + "\n")
    errors = sum(c["output"] is None for c in cases)
    unit_errors = sum(u["output"] is None for u in units)
    print(f"{len(sources)} templates, {len(cases)} cases ({errors} errors), {len(units)} units ({unit_errors} errors)")


if __name__ == "__main__":
    main()
