"""Cleaning of one string: markup, accelerator marks and placeholders out; untranslated and tiny ones dropped."""

import html
import re
import unicodedata

SCRIPTS = {"hi": (0x0900, 0x097F), "mr": (0x0900, 0x097F), "bn": (0x0980, 0x09FF), "ta": (0x0B80, 0x0BFF),
           "te": (0x0C00, 0x0C7F)}
TAG = re.compile(r"</?[A-Za-z_][^<>]{0,200}>|<!--.*?-->")
ACCELERATOR = re.compile(r"\s*\([&_~]\w\)|(?<!\w)[&_~](?=\w)|(?<=\w)[&~](?=\w)|(?<=[a-z])_(?=[a-z]+\b)(?!\w*_)")
WIKI = re.compile(r"\{\{[^{}]*\}\}|\[\[(?:[^\[\]|]*\|)?([^\[\]]*)\]\]|\[(?:https?:|\$)\S+ ([^\[\]]*)\]|'{2,}")
PLACEHOLDER = re.compile(r"%[-+ #0]*\d*(?:\.\d+)?(?:\d+\$)?[a-zA-Z]\b|%\d|\$\{?\w+\}?|\{[\w.:!-]*\}|@\w+@?|\\[ntu]")
ODD = re.compile(r"https?://|[\w.-]+/[\w.-]+/|\\|[{}|=]{2}|::|\w+\(\)|[\u200b\ufeff\ufffd\x00-\x08\x0b-\x1f]|[^\s]{60,}")


def line(text, language):
    """The cleaned single line, or None when it is not worth keeping in `language`."""
    text = unicodedata.normalize("NFC", html.unescape(text))
    text = TAG.sub(" ", text)
    text = WIKI.sub(lambda m: m.group(1) or m.group(2) or "", text)
    text = ACCELERATOR.sub("", text)
    text = " ".join(text.replace("\u00a0", " ").split()).strip(" *-•|")
    if ODD.search(text) or len(PLACEHOLDER.findall(text)) > 1:
        return None
    text = " ".join(PLACEHOLDER.sub("…", text).split()) if PLACEHOLDER.search(text) else text
    letters = [c for c in text if unicodedata.category(c)[0] in "LM"]
    words = text.split()
    if language == "en":
        keep = sum(c < "\u0250" for c in letters) >= 0.98 * len(letters) and len(words) >= 4
    else:
        low, high = SCRIPTS[language]
        keep = sum(low <= ord(c) <= high for c in letters) >= 0.7 * len(letters) and len(words) >= 3
    # Prose, not tables of symbols: two thirds of what is no blank must be letters.
    return text if keep and len(letters) >= 12 and len(letters) >= 0.66 * len(text.replace(" ", "")) else None


def paragraphs(text, language):
    pieces = (line(piece, language) for piece in re.split(r"\n\s*\n", text))
    return [piece for piece in pieces if piece]


def key(text):
    """What two lines share when they differ in case, digits, punctuation or spacing alone."""
    return "".join(c for c in text.casefold() if unicodedata.category(c)[0] in "LM")


def word_runs(text):
    """Hashes of runs of four words (of the whole line when it is shorter)."""
    words = text.casefold().split()
    return [hash(tuple(words[i:i + 4])) for i in range(max(1, len(words) - 3))]
