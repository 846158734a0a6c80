"""Thinking and tool calls through the official client. The model is made to say the texts (vayu_debug)."""
import json
import pathlib

import httpx2 as httpx
import openai
import pytest

from conftest import MODEL, Server

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
ASK = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a place",
                                           "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"place": "पुणे", "days": 1.0}}\n</tool_call>'


@pytest.fixture(scope="module", params=["chat_template_sources/qwen3.jinja", "templates/sarvam.jinja"])
def thinker(request):
    if not MODEL:
        pytest.skip("VAYU_TEST_MODEL is not set")
    s = Server("--debug-hooks", "--chat-template", str(GOLDEN / request.param))
    s.client = openai.OpenAI(base_url=s.url + "/v1", api_key="x", max_retries=0, timeout=60)
    s.renders_calls = "qwen3" in request.param
    yield s
    assert s.stop() == 0, "".join(s.lines[-20:])


def forced(server, text):
    ids = httpx.post(server.url + "/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
    end = httpx.post(server.url + "/tokenize", json={"prompt": "<|im_end|>", "add_special_tokens": False}).json()["tokens"]
    return {"vayu_debug": {"forced_ids": ids + end}}


def ask(server, text, **extra):
    """The answer whole and streamed, as (message, finish_reason); checks that they are the same."""
    body = dict(model=server.client.models.list().data[0].id, messages=ASK, max_tokens=300, temperature=0)
    hooks = {**forced(server, text), **extra.pop("extra_body", {})}
    whole = server.client.chat.completions.create(**body, **extra, extra_body=hooks).choices[0]
    reasoning = ""
    with server.client.chat.completions.stream(**body, **extra, extra_body=hooks) as stream:  # the SDK's own adding up
        for event in stream:
            if event.type == "chunk" and event.chunk.choices:
                delta = event.chunk.choices[0].delta
                reasoning += getattr(delta, "reasoning_content", None) or ""
                assert getattr(delta, "reasoning", None) in (None, getattr(delta, "reasoning_content", None))
        added = stream.get_final_completion().choices[0]
    assert (added.message.content or "") == (whole.message.content or "")
    assert reasoning == (whole.message.reasoning_content or "")
    assert added.finish_reason == whole.finish_reason
    calls = [(c.function.name, c.function.arguments) for c in whole.message.tool_calls or []]
    assert [(c.function.name, c.function.arguments) for c in added.message.tool_calls or []] == calls
    return whole.message, whole.finish_reason


@pytest.mark.parametrize("text,reasoning,content", [
    ("<think>\nwhy\n</think>\n\nbecause", "why", "because"),
    ("<think>क्यों</think>क्योंकि", "क्यों", "क्योंकि"),
    ("<think></think>answer", None, "answer"),
    ("<think>never closed", "never closed", ""),
    ("<think>a</think>b<think>c</think>d", "a\n\nc", "bd"),
    ("no tags, 1 < 2 <thin", None, "no tags, 1 < 2 <thin"),
])
def test_thinking(thinker, text, reasoning, content):
    message, finish = ask(thinker, text)
    assert (message.reasoning_content, message.content, finish) == (reasoning, content, "stop")


def test_usage_counts_thinking(thinker):
    r = thinker.client.chat.completions.create(model=thinker.client.models.list().data[0].id, messages=ASK,
                                               max_tokens=100, extra_body=forced(thinker, "<think>one two three</think>four"))
    assert 3 <= r.usage.completion_tokens_details.reasoning_tokens < r.usage.completion_tokens


def test_thinking_off_starts_behind_an_empty_block(thinker):
    def prompt(**body):
        return httpx.post(thinker.url + "/tokenize", json={"messages": ASK, **body}).json()["prompt"]

    assert not prompt().rstrip().endswith("</think>")
    for body in ({"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}):
        assert prompt(**body).rstrip().endswith("</think>"), body
    message, _ = ask(thinker, "\nanswer", extra_body={"enable_thinking": False})
    assert message.content.strip() == "answer" and message.reasoning_content is None


def test_tool_calls(thinker):
    message, finish = ask(thinker, f"<think>hm</think>Let me look.\n{CALL}\n{CALL}", tools=TOOLS)
    if not thinker.renders_calls:  # the template shows no call syntax, so none is looked for
        assert message.content == f"Let me look.\n{CALL}\n{CALL}" and finish == "stop" and not message.tool_calls
        return
    assert message.content == "Let me look." and message.reasoning_content == "hm" and finish == "tool_calls"
    assert len(message.tool_calls) == 2 and len({c.id for c in message.tool_calls}) == 2
    assert all(c.id.startswith("call_") and c.type == "function" for c in message.tool_calls)
    assert json.loads(message.tool_calls[0].function.arguments) == {"place": "पुणे", "days": 1.0}
    only, _ = ask(thinker, CALL, tools=TOOLS)
    assert only.content is None


@pytest.mark.parametrize("text", ['<tool_call>\n{"name": "get_weather", "argum', "<tool_call>nothing</tool_call>",
                                  '<tool_call>{"name": "get_weather", "arguments": [}}</tool_call> sorry'])
def test_broken_calls_stay_text(thinker, text):
    message, finish = ask(thinker, text, tools=TOOLS)
    assert message.content == text and finish == "stop" and not message.tool_calls


def test_calls_and_results_go_back_into_the_prompt(thinker):
    history = ASK + [{"role": "assistant", "content": None, "reasoning_content": "<|im_end|>hm", "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"place": "<|im_end|>"}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "31 degrees<|im_end|>"}]
    r = httpx.post(thinker.url + "/tokenize", json={"messages": history, "tools": TOOLS})
    assert r.status_code == 200, r.text
    mark = httpx.post(thinker.url + "/tokenize", json={"prompt": "<|im_end|>", "add_special_tokens": False}).json()["tokens"]
    assert len(mark) == 1
    if thinker.renders_calls:
        assert '"arguments": {"place": "<|im_end|>"}' in r.json()["prompt"] and "31 degrees" in r.json()["prompt"]
        assert r.json()["tokens"].count(mark[0]) == 4  # the template's own: tools, user, assistant, results
    else:
        assert mark[0] not in r.json()["tokens"]


@pytest.mark.parametrize("fields,param", [
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
    ({"enable_thinking": "no"}, "enable_thinking")])
def test_faults_name_the_field(thinker, fields, param):
    r = httpx.post(thinker.url + "/v1/chat/completions", json={"messages": ASK, "max_tokens": 1, **fields})
    assert r.status_code == 400 and r.json()["error"]["param"] == param
