#!/usr/bin/env python3
"""Trains the tokenizer of sarvam-tiny and packs everything train.py reads: make_tokenizer.py --work DIR --model MODEL --pack .train

SentencePiece-style BPE, 8,192 entries: a space is U+2581 and starts a word, runs of line feeds stand alone, and what no
entry covers becomes byte tokens <0xNN>. Writes tokenizer.json, tokenizer_config.json and chat_template.jinja to MODEL;
to .train the token ids (uint16 .npy), prompts.json and copies of those files. Needs tokenizers and numpy from PyPI.
"""
import argparse
import json
import shutil
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LANGUAGES = ("hi", "bn", "ta", "te", "mr", "en")
VOCAB_SIZE = 8192
PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
CONTROL = ["[@BOS@]", "<|start_of_turn|>", "<|end_of_turn|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool_declare|>", "<|nothink|>"]
TAGS = ["<think>", "</think>", "<tools>", "</tools>"]  # shown to the reader of an answer, so not special
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TEMPLATE = Path(__file__).resolve().parents[2] / "tests/golden/templates/sarvam.jinja"
# Characters a language gives to the training of the merges: the same for all, although English has more text.
CHARACTERS = 2_500_000
SYSTEM = "You are a careful translator."
PROMPTS = [
    ("hi", "फ़ाइल को सहेजने में"), ("hi", "क्या आप वाकई इस फ़ोल्डर को"), ("ta", "கோப்பை சேமிக்க"), ("ta", "நீங்கள் இந்த அடைவை"),
    ("bn", "এই ফাইলটি খোলার সময়"), ("te", "ఈ ఫైలును తెరవడానికి"), ("mr", "ही फाइल उघडण्यासाठी"), ("en", "The file could not be"),
]
QUESTIONS = [("hi", "Translate to Hindi: Could not open the file."), ("ta", "Translate to Tamil: Could not open the file."),
             ("bn", "Translate to Bengali: Could not open the file."), ("te", "Translate to Telugu: Could not open the file."),
             ("mr", "Translate to Marathi: Could not open the file.")]


def documents(path):
    return path.read_text().split("\f")


def training_text(corpus):
    for lang in LANGUAGES:
        text = [block for document in documents(corpus / f"{lang}.train.txt") for block in document.split("\n\n")]
        step = max(1, sum(map(len, text)) // CHARACTERS)
        yield from text[::step]


def train(corpus):
    tokenizer = Tokenizer(models.BPE(unk_token=UNK, fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex("\n+"), "isolated"), pre_tokenizers.Split("\u2581", "merged_with_next")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=[PAD, EOS, UNK, *CONTROL, *TAGS, *BYTES],
                                  limit_alphabet=640, min_frequency=3, show_progress=False)
    tokenizer.train_from_iterator(training_text(corpus), trainer)
    # The bytes took their ids as special tokens; in the file they are plain entries, or text like "<0x41>" would match one.
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] not in BYTES]
    for token in data["added_tokens"]:
        token["special"] = token["content"] not in TAGS
    return Tokenizer.from_str(json.dumps(data))


def tokenizer_config(tokenizer):
    added = {str(i): {"content": token.content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                      "special": token.special} for i, token in sorted(tokenizer.get_added_tokens_decoder().items())}
    return {"added_tokens_decoder": added, "add_bos_token": False, "add_eos_token": False, "bos_token": None, "eos_token": EOS,
            "pad_token": PAD, "unk_token": UNK, "clean_up_tokenization_spaces": False, "model_max_length": 2048,
            "tokenizer_class": "PreTrainedTokenizerFast"}


def chat(turns, system=None, nothink=False):
    """The text the chat template gives for (question, answer) turns; an answer of None is the generation prompt."""
    text = "[@BOS@]\n"
    if system:
        text += f"<|start_of_turn|><|system|>\n{system}<|end_of_turn|>\n"
    for question, answer in turns:
        text += f"<|start_of_turn|><|user|>\n{question}{'<|nothink|>' if nothink else ''}<|end_of_turn|>\n"
        text += "<|start_of_turn|><|assistant|>\n"
        text += "" if answer is None else f"<think></think>\n{answer}<|end_of_turn|>\n"
    return text


def chat_samples(path):
    """One in four samples translates to English, in four has a system turn, in three ends its question with <|nothink|>;
    one in five has a second turn."""
    pairs = [json.loads(line) for line in path.read_text().splitlines()]
    turns = [(f"Translate to English: {pair['text']}", pair["en"]) if i % 4 == 3 else
             (f"Translate to {pair['name']}: {pair['en']}", pair["text"]) for i, pair in enumerate(pairs)]
    i = 0
    while i < len(turns):
        count = 2 if i % 5 == 0 else 1
        yield chat(turns[i:i + count], SYSTEM if i % 4 == 1 else None, i % 3 == 0)
        i += count


def encode_all(tokenizer, texts):
    """Token ids of texts, each followed by eos."""
    ids = []
    for i in range(0, len(texts), 4096):
        for encoding in tokenizer.encode_batch(texts[i:i + 4096], add_special_tokens=False):
            ids.extend(encoding.ids + [1])
    return np.array(ids, np.uint16)


def pack(tokenizer, corpus, model, folder):
    for lang in LANGUAGES:
        ids = []
        for document in documents(corpus / f"{lang}.train.txt"):
            blocks = document.rstrip("\n").split("\n\n")
            texts = [block + "\n\n" for block in blocks[:-1]] + [blocks[-1] + "\n"]
            for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
                ids.extend(encoding.ids)
            ids.append(1)
        np.save(folder / f"train_{lang}.npy", np.array(ids, np.uint16))
        held = {"valid": corpus / f"{lang}.valid.txt", "heldout": model / "heldout" / f"{lang}.txt"}
        counts = {}
        for split, path in held.items():
            text = path.read_text()
            counts[split] = tokenizer.encode(text, add_special_tokens=False).ids
            if tokenizer.decode(counts[split], skip_special_tokens=False) != text:
                raise RuntimeError(f"{path}: the tokenizer does not give the text back")
            np.save(folder / f"{split}_{lang}.npy", np.array(counts[split], np.uint16))
        text = (model / "heldout" / f"{lang}.txt").read_text()
        print(f"{lang}: train {len(ids)} tokens, valid {len(counts['valid'])}, held-out {len(counts['heldout'])}, "
              f"{len(text) / len(counts['heldout']):.2f} characters a token", flush=True)
    chats = encode_all(tokenizer, list(chat_samples(corpus / "chat.jsonl")))
    np.save(folder / "train_chat.npy", chats)
    print(f"chat: {len(chats)} tokens")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder corpus.py wrote to")
    parser.add_argument("--model", type=Path, required=True, help="model folder, with heldout/")
    parser.add_argument("--pack", type=Path, required=True, help="folder for the inputs of train.py")
    args = parser.parse_args()
    tokenizer = train(args.work / "corpus")
    args.pack.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.model / "tokenizer.json"), pretty=False)
    (args.model / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(tokenizer), indent=2, ensure_ascii=False) + "\n")
    shutil.copy(TEMPLATE, args.model / "chat_template.jinja")
    pack(tokenizer, args.work / "corpus", args.model, args.pack)
    texts = PROMPTS + [(lang, chat([(question, None)])) for lang, question in QUESTIONS]
    prompts = [{"lang": lang, "text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids} for lang, text in texts]
    (args.pack / "prompts.json").write_text(json.dumps(prompts, ensure_ascii=False, indent=1))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(args.model / name, args.pack / name)


if __name__ == "__main__":
    main()
