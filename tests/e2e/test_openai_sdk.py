"""The official client against the running server: what a user's program does."""
import asyncio
import time

import httpx2 as httpx
import openai
import pytest

from conftest import KEY, Server, alike, wait_idle


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def ask(text):
    return [{"role": "user", "content": text}]


def test_models(client, model):
    listed = client.models.list().data
    assert [m.id for m in listed] == [model]
    assert listed[0].object == "model"
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")


def test_chat(client, model):
    r = client.chat.completions.create(model=model, messages=ask("What is the capital of India?"), temperature=0, max_tokens=32)
    choice = r.choices[0]
    assert r.object == "chat.completion" and choice.message.role == "assistant"
    assert "New Delhi" in choice.message.content
    assert choice.finish_reason == "stop"
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert 5 < r.usage.completion_tokens < 32


def test_chat_stream_equals_whole(client, model):
    args = dict(model=model, messages=ask("List three colours."), temperature=0, max_tokens=40)
    whole = client.chat.completions.create(**args)
    text, finish, usage, roles = "", [], None, []
    for chunk in client.chat.completions.create(**args, stream=True, stream_options={"include_usage": True}):
        assert chunk.object == "chat.completion.chunk"
        if not chunk.choices:
            assert usage is None
            usage = chunk.usage
            continue
        assert chunk.usage is None
        delta = chunk.choices[0].delta
        text += delta.content or ""
        if delta.role:
            roles.append(delta.role)
        if chunk.choices[0].finish_reason:
            finish.append(chunk.choices[0].finish_reason)
    assert text == whole.choices[0].message.content
    assert finish == [whole.choices[0].finish_reason]
    assert roles == ["assistant"]
    assert usage.model_dump(include={"prompt_tokens", "completion_tokens", "total_tokens"}) == whole.usage.model_dump(
        include={"prompt_tokens", "completion_tokens", "total_tokens"})


def test_completion_and_stream(client, model):
    args = dict(model=model, prompt="The history of the railway began when", temperature=0, max_tokens=24)
    whole = client.completions.create(**args)
    assert whole.object == "text_completion" and whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 24
    streamed = "".join(c.choices[0].text for c in client.completions.create(**args, stream=True))
    assert streamed == whole.choices[0].text


def test_prompt_as_token_ids(client, model):
    text = "Photosynthesis is the process by which"
    ids = httpx.post(str(client.base_url).replace("/v1/", "/tokenize"), json={"prompt": text}).json()["tokens"]
    by_text = client.completions.create(model=model, prompt=text, temperature=0, max_tokens=12)
    by_ids = client.completions.create(model=model, prompt=ids, temperature=0, max_tokens=12)
    several = client.completions.create(model=model, prompt=[ids, ids[:4]], temperature=0, max_tokens=12)
    assert by_text.choices[0].text == by_ids.choices[0].text == several.choices[0].text
    assert [c.index for c in several.choices] == [0, 1]


def test_return_token_ids(client, model):
    args = dict(model=model, prompt="One two three", temperature=0, max_tokens=8, extra_body={"return_token_ids": True})
    whole = client.completions.create(**args).choices[0]
    assert len(whole.token_ids) == 8 and whole.prompt_token_ids
    ids = []
    for chunk in client.completions.create(**args, stream=True):
        ids += getattr(chunk.choices[0], "token_ids", None) or []
    assert ids == whole.token_ids
    text = httpx.post(str(client.base_url).replace("/v1/", "/detokenize"), json={"tokens": ids}).json()["prompt"]
    assert text == whole.text


def test_seed_and_temperature(client, model):
    def sample(seed, temperature=1.2):
        return client.completions.create(model=model, prompt="My favourite", max_tokens=24, temperature=temperature,
                                         seed=seed).choices[0].text

    assert sample(7) == sample(7)
    assert len({sample(s) for s in range(4)}) > 1
    assert sample(1, 0) == sample(2, 0)


def test_n_answers(client, model):
    r = client.chat.completions.create(model=model, messages=ask("Say a word."), n=3, temperature=1.5, seed=3, max_tokens=12)
    assert [c.index for c in r.choices] == [0, 1, 2]
    assert len({c.message.content for c in r.choices}) > 1
    r = client.completions.create(model=model, prompt="Hello", n=3, temperature=0, max_tokens=5)
    assert len({c.text for c in r.choices}) == 1
    assert r.usage.completion_tokens == 15


def test_stop_string(client, model):
    base = client.completions.create(model=model, prompt="1, 2, 3, 4,", temperature=0, max_tokens=20).choices[0].text
    stop = base.strip()[4:8]
    args = dict(model=model, prompt="1, 2, 3, 4,", temperature=0, max_tokens=20, stop=[stop])
    cut = client.completions.create(**args)
    assert cut.choices[0].text == base[:base.index(stop)] and cut.choices[0].finish_reason == "stop"
    streamed = "".join(c.choices[0].text for c in client.completions.create(**args, stream=True))
    assert streamed == cut.choices[0].text


def test_logprobs(client, model):
    r = client.chat.completions.create(model=model, messages=ask("Hi"), temperature=0, max_tokens=6, logprobs=True, top_logprobs=4)
    content = r.choices[0].logprobs.content
    assert len(content) == r.usage.completion_tokens or len(content) + 1 == r.usage.completion_tokens
    for entry in content:
        assert len(entry.top_logprobs) == 4
        values = [t.logprob for t in entry.top_logprobs]
        assert values == sorted(values, reverse=True) and values[0] <= 0
        assert abs(entry.logprob - values[0]) < 1e-6, "greedy takes the most likely"
    r = client.completions.create(model=model, prompt="Hello there", max_tokens=4, temperature=0, logprobs=2, echo=True)
    lp = r.choices[0].logprobs
    assert lp.token_logprobs[0] is None and all(v <= 0 for v in lp.token_logprobs[1:])
    assert "".join(lp.tokens) == r.choices[0].text
    assert r.choices[0].text.startswith("Hello there")


def test_errors_have_the_openai_form(client, model):
    with pytest.raises(openai.NotFoundError) as e:
        client.chat.completions.create(model="nope", messages=ask("x"))
    assert "nope" in e.value.message
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model=model, messages=ask("x"), temperature=-1)
    assert e.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as e:
        client.completions.create(model=model, prompt="word " * 20000, max_tokens=1)
    assert "8192" in e.value.message
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=model, messages=[])


def test_client_timeout_frees_the_server(server, model):
    impatient = openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0, timeout=0.3)
    with pytest.raises(openai.APITimeoutError):
        impatient.completions.create(model=model, prompt="Count:", max_tokens=4000, extra_body={"ignore_eos": True})
    wait_idle(server, 3)


def test_stream_closed_early_is_cancelled(server, client, model):
    stream = client.completions.create(model=model, prompt="Count:", max_tokens=4000, stream=True, extra_body={"ignore_eos": True})
    for i, _ in enumerate(stream):
        if i == 5:
            break
    stream.close()
    wait_idle(server, 3)


def test_many_at_once_equal_alone(server, model):
    async def run():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0, timeout=120) as c:
            prompts = [f"Write about the number {i}." for i in range(16)]

            async def one(p):
                r = await c.chat.completions.create(model=model, messages=ask(p), temperature=0, max_tokens=24)
                return r.choices[0].message.content

            alone = [await one(p) for p in prompts[:6]]
            together = await asyncio.gather(*[one(p) for p in prompts])
            assert alike(together[:6], alone)

    asyncio.run(run())


def test_api_key():
    s = Server("--api-key", KEY)
    try:
        good = openai.OpenAI(base_url=s.url + "/v1", api_key=KEY, max_retries=0)
        name = good.models.list().data[0].id
        assert good.completions.create(model=name, prompt="Hi", max_tokens=2).choices[0].text is not None
        for bad_key in ("wrong", KEY + "x", KEY[:-1]):
            bad = openai.OpenAI(base_url=s.url + "/v1", api_key=bad_key, max_retries=0)
            with pytest.raises(openai.AuthenticationError):
                bad.models.list()
        assert httpx.get(s.url + "/health").status_code == 200
        assert httpx.get(s.url + "/metrics").status_code == 401
    finally:
        assert s.stop() == 0


def test_sigterm_finishes_running_streams():
    s = Server()
    c = openai.OpenAI(base_url=s.url + "/v1", api_key="x", max_retries=0, timeout=60)
    stream = c.completions.create(model=c.models.list().data[0].id, prompt="Count:", max_tokens=200, stream=True,
                                  extra_body={"ignore_eos": True})
    received = 0
    for chunk in stream:
        received += 1
        if received == 5:
            s.process.terminate()
        finish = chunk.choices[0].finish_reason
    assert finish == "length" and received >= 200
    assert s.process.wait(20) == 0
