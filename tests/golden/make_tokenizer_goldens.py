#!/usr/bin/env python3
"""Writes the tokenizer goldens: text with the token ids that the reference libraries give.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 gguf==0.19.0
    python tests/golden/make_tokenizer_goldens.py --model SmolLM2-135M-Instruct.Q4_1.gguf

tokenizer_smollm2.jsonl  2,000 lines and a few long inputs, ids by Hugging Face `tokenizers` from the vocabulary and
                         merges in the GGUF file.
tokenizer_small.json     two vocabularies of about 2,000 tokens trained here on the same lines: byte-level BPE
                         (`tokenizers`) and SentencePiece BPE with byte fallback (`sentencepiece`).
tokenizer_small.jsonl    lines with ids under each pattern (gpt2, smollm, llama_bpe, qwen2) and under sp.

Deterministic: a seeded generator over the sentences in tokenizer_sentences.json.
"""

import argparse
import io
import json
import pathlib
import random
import unicodedata

import gguf
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
NUM_LINES = 2000
NUM_SMALL_LINES = 400
ZWNJ, ZWJ, NUKTA = "\u200c", "\u200d", "\u093c"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<tool>", "\n\n\n\n"]


class LineMaker:
    """Each line is a sentence, a part of one, or a mix, put through one of the changes that trip tokenizers up."""

    def __init__(self, sentences, seed):
        self.random = random.Random(seed)
        self.groups = list(sentences.values())
        self.digits = ["0123456789", "०१२३४५६७८९", "০১২৩৪৫৬৭৮৯", "௦௧௨௩௪௫௬௭௮௯", "۰۱۲۳۴۵۶۷۸۹", "᱐᱑᱒᱓᱔᱕᱖᱗᱘᱙", "½²Ⅷ①৴"]
        self.spaces = ["  ", "   ", "\t", "\t\t", " \t ", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u3000", "\u2009",
                       " " * 17, "\n" * 9, "\u2028", "\x0b", "\x85"]
        self.changes = [self.as_is, self.as_is, self.glue, self.joiner, self.nukta, self.number, self.space, self.mix,
                        self.case, self.contraction, self.punctuation, self.strip, self.edge]

    def part(self):
        words = self.random.choice(self.random.choice(self.groups)).split(" ")
        start = self.random.randrange(len(words))
        return " ".join(words[start:start + self.random.randint(1, 6)])

    def line(self):
        return self.random.choice(self.changes)(self.part())

    def insert(self, text, piece):
        at = self.random.randint(0, len(text))
        return text[:at] + piece + text[at:]

    def as_is(self, text):
        return text

    def glue(self, text):
        return text.replace(" ", "")

    def joiner(self, text):
        for _ in range(self.random.randint(1, 3)):
            text = self.insert(text, self.random.choice([ZWJ, ZWNJ, "\u2060", "\ufeff"]))
        return text

    def nukta(self, text):
        composed = {"\u0915": "\u0958", "\u0916": "\u0959", "\u0917": "\u095a", "\u091c": "\u095b", "\u0921": "\u095c",
                    "\u0922": "\u095d", "\u092b": "\u095e", "\u09a1": "\u09dc", "\u09af": "\u09df", "\u0a16": "\u0a59",
                    "\u0b21": "\u0b5c"}
        decompose = self.random.random() < 0.5
        out = "".join(composed[c] if c in composed and self.random.random() < 0.5 else c for c in text)
        return unicodedata.normalize("NFD", out) if decompose else out

    def number(self, text):
        digits = self.random.choice(self.digits)
        value = "".join(self.random.choice(digits) for _ in range(self.random.randint(1, 12)))
        return self.insert(text, self.random.choice(["", " ", "  "]) + value + self.random.choice(["", " ", ".", ",5"]))

    def space(self, text):
        for _ in range(self.random.randint(1, 3)):
            text = self.insert(text, self.random.choice(self.spaces))
        return text

    def mix(self, text):
        return text + self.random.choice([" ", "", "-", "/", "।"]) + self.part()

    def case(self, text):
        return text.upper() if self.random.random() < 0.5 else text.title()

    def contraction(self, text):
        piece = self.random.choice(["'s", "'S", "'re", "'VE", "'ll", "'lL", "'d", "'x", "''t", "\u2019s", "'\u017f", "'"])
        return self.insert(text, piece)

    def punctuation(self, text):
        return self.insert(text, self.random.choice(["...", "!?", " —", "।।", "\\n", "=>", "()\n", "##", "{}\r\n", " $", "_"]))

    def strip(self, text):
        return self.random.choice([" ", "\n", "\t", "  "]) + text + self.random.choice([" ", "\n", "   ", " \n"])

    def edge(self, text):
        return "".join(self.random.choice(text) for _ in range(self.random.randint(1, 12)))


def make_lines(count, seed):
    sentences = json.loads((HERE / "tokenizer_sentences.json").read_text(encoding="utf-8"))
    lines = dict.fromkeys(line for group in sentences.values() for line in group)
    maker = LineMaker(sentences, seed)
    while len(lines) < count:
        lines.setdefault(maker.line())
    return list(lines)[:count]


def byte_level(vocab, merges, pre, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def split_by(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2_words():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def smollm_words():
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2_words()])


def fnv1a(ids):
    """64-bit FNV-1a over ids as 4 little-endian bytes each."""
    value = 0xCBF29CE484222325
    for byte in b"".join(i.to_bytes(4, "little") for i in ids):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def write_lines(name, rows):
    text = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
    (HERE / name).write_text(text, encoding="utf-8")
    print(f"{name}: {len(rows)} lines, {len(text.encode())} bytes")


def smollm2_goldens(model_path, lines):
    fields = gguf.GGUFReader(model_path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = byte_level({t: i for i, t in enumerate(tokens)}, merges, smollm_words())
    rows = [{"text": line, "ids": tokenizer.encode(line).ids} for line in lines]
    lossy = [row["text"] for row in rows if tokenizer.decode(row["ids"], skip_special_tokens=False) != row["text"]]
    print("lines that the reference does not give back:", [ascii(text) for text in lossy])
    for unit, times in [("a", 100000), ("\n", 100000), (" ", 100000), ("क", 40000), ("नमस्ते", 10000), ("ab", 50000),
                        ("1", 20000), ("👩‍🚀", 5000), ("the", 30000), ("=", 100000)]:
        ids = tokenizer.encode(unit * times).ids
        rows.append({"unit": unit, "times": times, "num_ids": len(ids), "fnv1a": f"{fnv1a(ids):016x}"})
    write_lines("tokenizer_smollm2.jsonl", rows)


def train_byte_level(lines):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = gpt2_words()
    trainer = trainers.BpeTrainer(vocab_size=2000 - len(USER_DEFINED), special_tokens=CONTROL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(lines, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [tuple(m) for m in model["merges"]]


def train_sentencepiece(lines):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=2000, byte_fallback=True,
        character_coverage=0.995, normalization_rule_name="identity", remove_extra_whitespaces=False,
        add_dummy_prefix=True, allow_whitespace_only_pieces=True, split_digits=True, num_threads=1,
        minloglevel=2)
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def sentencepiece_type(sp, i):
    return 6 if sp.is_byte(i) else 3 if sp.is_control(i) else 2 if sp.is_unknown(i) else 5 if sp.is_unused(i) else 1


def small_goldens(lines):
    tokens, merges = train_byte_level(lines)
    sp = train_sentencepiece([line for text in lines for line in text.split("\n") if line])
    vocab = {t: i for i, t in enumerate(tokens)}
    references = {
        "gpt2": byte_level(vocab, merges, gpt2_words()),
        "smollm": byte_level(vocab, merges, smollm_words()),
        "llama_bpe": byte_level(vocab, merges, split_by(LLAMA3), ignore_merges=True),
        "qwen2": byte_level(vocab, merges, split_by(QWEN2)),
    }
    stride = len(lines) / NUM_SMALL_LINES
    rows = []
    for i in range(NUM_SMALL_LINES):
        text = lines[int(i * stride)]
        row = {"text": text} | {name: t.encode(text).ids for name, t in references.items()} | {"sp": sp.encode(text)}
        # A pattern's ids are left out where they are those of gpt2.
        rows.append({k: v for k, v in row.items() if k in ("text", "gpt2", "sp") or v != row["gpt2"]})
    marked = byte_level(vocab, merges, gpt2_words())
    marked.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    marked.add_tokens([AddedToken(t, special=False, normalized=False) for t in USER_DEFINED])
    for text in ["<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n", "<|im_start|><|im_end|>", "<|im_start|",
                 "a <tool> b<tool>", "<<|im_end|>>", "x\n\n\n\n\n\ny", "  <|endoftext|>  ", "नमस्ते<|im_end|>नमस्ते"]:
        rows.append({"text": text, "marked": marked.encode(text).ids})
    write_lines("tokenizer_small.jsonl", rows)

    spec = {
        "bpe": {"tokens": tokens + USER_DEFINED, "merges": [" ".join(m) for m in merges],
                "types": [3 if t in CONTROL else 1 for t in tokens] + [4] * len(USER_DEFINED), "bos_id": 1, "eos_id": 2},
        "sp": {"tokens": [sp.id_to_piece(i) for i in range(sp.vocab_size())],
               "scores": [round(sp.get_score(i), 3) for i in range(sp.vocab_size())],
               "types": [sentencepiece_type(sp, i) for i in range(sp.vocab_size())],
               "bos_id": sp.bos_id(), "eos_id": sp.eos_id(), "unknown_id": sp.unk_id()},
    }
    text = json.dumps(spec, ensure_ascii=False, separators=(",", ":")) + "\n"
    (HERE / "tokenizer_small.json").write_text(text, encoding="utf-8")
    print(f"tokenizer_small.json: {len(text.encode())} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="SmolLM2-135M-Instruct as GGUF")
    args = parser.parse_args()
    lines = make_lines(NUM_LINES, seed=20)
    small_goldens(lines)
    smollm2_goldens(args.model, lines)


if __name__ == "__main__":
    main()
