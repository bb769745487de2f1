"""openai of PyPI: audio and images."""

import base64
import tempfile
import urllib.request
from pathlib import Path

import openai
from case import BASE, BRUSH, EARS, FAR, KEY, NEAR, VOICE, case, equal, holds, run

client = openai.OpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0)
below = openai.OpenAI(base_url=f"{BASE}/openai/v1", api_key=KEY, max_retries=0)
AUDIO = ("a b.wav", b"x" * 300_000)
SAID = "transcriptions of a b.wav:300000"


@case
def transcriptions():
    for one in (client, below):
        for model in (FAR, EARS):
            equal(one.audio.transcriptions.create(model=model, file=AUDIO).text, SAID)
            equal(one.audio.transcriptions.create(model=model, file=AUDIO, response_format="text"), f"{SAID}\n")
    said = client.audio.transcriptions.create(
        model=EARS, file=AUDIO, response_format="verbose_json", language="en", temperature=0.5,
        timestamp_granularities=["word", "segment"],
    )
    equal((said.text, said.duration), (SAID, 1.5))
    holds("-->" in client.audio.transcriptions.create(model=FAR, file=AUDIO, response_format="srt"), "srt")
    with tempfile.NamedTemporaryFile(suffix=".mp3") as file:
        file.write(b"abc")
        file.flush()
        with open(file.name, "rb") as opened:
            said = client.audio.transcriptions.create(model=EARS, file=opened)
        equal(said.text, f"transcriptions of {Path(file.name).name}:3")


@case
def transcription_stream():
    for model in (FAR, EARS):
        events = list(client.audio.transcriptions.create(model=model, file=AUDIO, stream=True))
        equal([event.type for event in events], ["transcript.text.delta", "transcript.text.done"])
        equal(events[-1].text, SAID)


@case
def translations():
    equal(client.audio.translations.create(model=EARS, file=AUDIO).text, SAID.replace("transcriptions", "translations"))


@case
def speech():
    for one in (client, below):
        for model in (FAR, VOICE):
            said = one.audio.speech.create(model=model, voice="alloy", input="Hello", response_format="mp3")
            equal(said.read(), b"ID3Hello")
            with one.audio.speech.with_streaming_response.create(model=model, voice="alloy", input="Hello") as said:
                equal(b"".join(said.iter_bytes()), b"ID3Hello")


@case
def images():
    for one in (client, below):
        for model in (FAR, BRUSH):
            made = one.images.generate(model=model, prompt="a cat", n=2, size="1024x1024")
            equal([base64.b64decode(image.b64_json) for image in made.data], [b"a cat"] * 2)
            made = one.images.generate(model=model, prompt="a cat", response_format="url")
            with urllib.request.urlopen(made.data[0].url) as answer:
                equal(answer.read(), b"a cat")


@case
def image_edits():
    files = [("a.png", b"one"), ("b.png", b"three")]
    for one in (client, below):
        for model in (FAR, BRUSH):
            made = one.images.edit(model=model, prompt="a hat", image=files, mask=("m.png", b"four"))
            equal(base64.b64decode(made.data[0].b64_json), b"a hat a.png:3 b.png:5 m.png:4")
            made = one.images.edit(model=model, prompt="a hat", image=files[0], n=1)
            equal(base64.b64decode(made.data[0].b64_json), b"a hat a.png:3")


@case
def errors():
    for call in (
        lambda: client.audio.speech.create(model=NEAR, voice="alloy", input="Hello"),
        lambda: client.audio.transcriptions.create(model=VOICE, file=AUDIO),
        lambda: client.images.generate(model=BRUSH, prompt="a cat", n=11),
    ):
        try:
            call()
        except openai.BadRequestError as error:
            holds(error.param in ("model", "n"), error.body)
        else:
            holds(False, "no error")


run()
