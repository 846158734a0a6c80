#!/usr/bin/env python3
"""Writes the goldens of tokenizer.json: pipelines, and the ids and texts that the reference library gives for them.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 gguf==0.19.0 protobuf==7.36.2
    python tests/golden/tokenizer_json_make.py

tokenizer_json_cases.json   four small models trained here, and cases: the parts of a tokenizer.json file around one of them
tokenizer_json_texts.jsonl  texts with, for each case, the ids and the decoded text (left out where it is the input)
"""

import argparse
import base64
import io
import json
import pathlib
import random

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from make_tokenizer_goldens import LLAMA3, QWEN2, make_lines

HERE = pathlib.Path(__file__).resolve().parent
NUM_TEXTS = 130
SPACE = "\u2581"
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+")
# From U+FB01 and friends to plain letters, a composed e, a space for U+200B, nothing for U+00AD.
CHARSMAP_RULES = [("FB01", "66 69"), ("FF21", "41"), ("65 301", "E9"), ("200B", "20"), ("A0", "20"), ("2026", "2E 2E 2E"),
                  ("AD", ""), ("915 93C", "958"), ("9", "20"), ("A", "20"), ("61 300", "E0"), ("D A", "20")]


def added(content, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True} | flags


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def byte_level(prefix=False, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def words(*parts):
    return sequence("pretokenizers", *parts)


def replace(old, new, kind="String"):
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def metaspace(scheme="always", do_split=True):
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": do_split}


def strip(start, stop):
    return {"type": "Strip", "content": " ", "start": start, "stop": stop}


def template(before, after):
    """before, after: names of added tokens; their ids are filled in later."""
    single = [{"SpecialToken": {"id": t, "type_id": 0}} for t in before]
    single += [{"Sequence": {"id": "A", "type_id": 0}}] + [{"SpecialToken": {"id": t, "type_id": 0}} for t in after]
    return {"type": "TemplateProcessing", "single": single,
            "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [t], "tokens": [t]} for t in before + after}}


def to_bytes(*before):
    return sequence("decoders", replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}, *before)


CHAT = [added(t) for t in ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]]
TAGS = [added("<think>", special=False), added("\n\n\n", special=False), added("<tool>", special=False, normalized=True)]
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}

CASES = {
    # Published families.
    "gpt2": dict(model="byte_bpe", pre_tokenizer=byte_level(), decoder=BYTES, post_processor=BYTES, added_tokens=CHAT),
    "gpt2_prefix": dict(model="byte_bpe", pre_tokenizer=byte_level(prefix=True), decoder=BYTES, added_tokens=CHAT),
    "llama3": dict(model="byte_bpe", options={"ignore_merges": True}, decoder=BYTES, added_tokens=CHAT + TAGS,
                   pre_tokenizer=words(split(LLAMA3), byte_level(regex=False)),
                   post_processor=sequence("processors", BYTES, template(["<|endoftext|>"], []))),
    "qwen": dict(model="byte_bpe", normalizer={"type": "NFC"}, decoder=BYTES, added_tokens=CHAT + TAGS,
                 pre_tokenizer=words(split(QWEN2), byte_level(regex=False)), options={"string_merges": True}),
    "gpt4o": dict(model="byte_bpe", pre_tokenizer=words(split(O200K), byte_level(regex=False)), decoder=BYTES,
                  added_tokens=CHAT),
    "deepseek": dict(model="byte_bpe", decoder=BYTES, added_tokens=CHAT,
                     pre_tokenizer=words(split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
                                         split(DEEPSEEK), byte_level(regex=False))),
    "falcon": dict(model="byte_bpe", decoder=BYTES, added_tokens=CHAT,
                   pre_tokenizer=words({"type": "Punctuation", "behavior": "Contiguous"}, byte_level(),
                                       {"type": "Digits", "individual_digits": False},
                                       split("[0-9][0-9][0-9]"))),
    "smollm": dict(model="byte_bpe", decoder=BYTES, added_tokens=CHAT,
                   pre_tokenizer=words({"type": "Digits", "individual_digits": True}, byte_level())),
    "llama2": dict(model="char_bpe", options={"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"},
                   normalizer=sequence("normalizers", {"type": "Prepend", "prepend": SPACE}, replace(" ", SPACE)),
                   decoder=to_bytes(strip(1, 0)), post_processor=template(["<s>"], ["</s>"]),
                   added_tokens=[added("<unk>"), added("<s>"), added("</s>"), added("<|im_end|>", normalized=True)]),
    "sarvam": dict(model="char_bpe", options={"byte_fallback": True, "unk_token": "<unk>"}, normalizer=replace(" ", SPACE),
                   decoder=to_bytes(),
                   added_tokens=[added("<unk>"), added("[@BOS@]"), added("<|start_of_turn|>"), added("<|end_of_turn|>"),
                                 added("<|im_end|>"), added("<think>", special=False), added("\n\n\n", special=False)]),
    "gemma": dict(model="char_bpe", options={"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True},
                  normalizer=replace(" ", SPACE), pre_tokenizer=split(" ", "MergedWithPrevious", kind="String"),
                  decoder=to_bytes(), post_processor=template(["<s>"], []), added_tokens=[added("<unk>"), added("<s>")]),
    "newline_runs": dict(model="char_bpe", options={"byte_fallback": True}, normalizer=replace(" ", SPACE),
                         pre_tokenizer=split(r"[^\n]+|[\n]+"), decoder=to_bytes(), added_tokens=CHAT),
    "xlmr": dict(model="unigram", normalizer=sequence("normalizers", "charsmap", replace(" {2,}", " ", "Regex")),
                 pre_tokenizer=metaspace(), decoder=metaspace(), added_tokens=[added("<s>"), added("</s>"), added("<unk>")],
                 post_processor=template(["<s>"], ["</s>"])),
    "t5": dict(model="unigram", options={"byte_fallback": True}, normalizer="charsmap",
               pre_tokenizer=words({"type": "WhitespaceSplit"}, metaspace()), decoder=metaspace(),
               added_tokens=[added("<unk>"), added("<s>", lstrip=True)]),
    "bert": dict(model="wordpiece", pre_tokenizer={"type": "BertPreTokenizer"},
                 normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                             "strip_accents": None, "lowercase": True},
                 decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}, added_tokens=[added("[CLS]"), added("[SEP]")],
                 post_processor={"type": "BertProcessing", "sep": ["[SEP]", "[SEP]"], "cls": ["[CLS]", "[CLS]"]}),
    "roberta": dict(model="byte_bpe", pre_tokenizer=byte_level(), decoder=BYTES,
                    added_tokens=[added("<s>"), added("</s>"), added("<mask>", lstrip=True)],
                    post_processor={"type": "RobertaProcessing", "sep": ["</s>", "</s>"], "cls": ["<s>", "<s>"],
                                    "trim_offsets": True, "add_prefix_space": False}),
    # Single parts.
    "word_ends": dict(model="end_bpe", normalizer=sequence("normalizers", {"type": "NFD"}, {"type": "Lowercase"},
                                                           {"type": "StripAccents"}),
                      pre_tokenizer={"type": "Whitespace"}, decoder={"type": "BPEDecoder", "suffix": "</w>"}),
    "inside_prefix": dict(model="prefix_bpe", pre_tokenizer={"type": "WhitespaceSplit"}, options={"fuse_unk": True}),
    "strip": dict(model="char_bpe", options={"unk_token": "<unk>"},
                  normalizer=sequence("normalizers", {"type": "Strip", "strip_left": True, "strip_right": True},
                                      {"type": "NFKC"}, replace(r"[0-9]+", "0", "Regex")),
                  pre_tokenizer=metaspace("first"), decoder=sequence("decoders", replace(SPACE, "_"), {"type": "Fuse"},
                                                                     replace("__", " "), strip(1, 1))),
    "nfkd_never": dict(model="char_bpe", options={"byte_fallback": True}, normalizer={"type": "NFKD"},
                       pre_tokenizer=metaspace("never", False),
                       decoder=sequence("decoders", {"type": "ByteFallback"}, metaspace("never"))),
    "first_unsplit": dict(model="char_bpe", options={"byte_fallback": True}, pre_tokenizer=metaspace("first", False),
                          decoder=sequence("decoders", {"type": "ByteFallback"}, metaspace("first")), added_tokens=CHAT),
    "removed": dict(model="char_bpe", options={"unk_token": "<unk>"}, pre_tokenizer=split(r"\s+", "Removed"),
                    decoder=strip(1, 1)),
    "inverted": dict(model="char_bpe", options={"unk_token": "<unk>"}, pre_tokenizer=split(r"\w+|[^\w\s]+", "Removed", True),
                     decoder={"type": "Fuse"}),
    "with_previous": dict(model="char_bpe", options={"unk_token": "<unk>"}, decoder={"type": "Fuse"},
                          pre_tokenizer=split(r"[aeiou \n]", "MergedWithPrevious")),
    "with_next": dict(model="char_bpe", options={"unk_token": "<unk>"}, decoder={"type": "Fuse"},
                      pre_tokenizer=words(split(r"[aeiou \n]", "MergedWithNext"), split("e", "MergedWithNext", True, "String"))),
    "contiguous": dict(model="char_bpe", options={"unk_token": "<unk>"}, decoder={"type": "Fuse"},
                       pre_tokenizer=words(split(r"[aeiou \n]", "Contiguous"), split(r"(?=\p{M})", "Isolated"))),
    "punctuation": dict(model="char_bpe", options={"unk_token": "<unk>"}, decoder={"type": "Fuse"},
                        pre_tokenizer={"type": "Punctuation", "behavior": "MergedWithPrevious"}),
    "flags": dict(model="char_bpe", options={"unk_token": "<unk>"}, normalizer={"type": "Lowercase"}, decoder={"type": "Fuse"},
                  added_tokens=[added("<unk>"), added("<L>", lstrip=True), added("<R>", rstrip=True, normalized=True),
                                added("<B>", lstrip=True, rstrip=True), added("word", single_word=True, special=False),
                                added("Tag", special=False, normalized=True), added("<LL>"), added("<|im_end|>"),
                                added("\n\n", special=False), added("is", single_word=True, special=False, normalized=True)]),
}

MARKED = ["<|im_start|>user\nHello<|im_end|>\n<|im_start|>", "a <L> b<R>  c <B> d", "<L><L> <R> <R>", "wordy word sword word",
          "Tag TAG tag <|im_end|", "<LL><L><|im_end|>\n\n\n\n", "<s> x </s>", "[@BOS@]\n<|start_of_turn|>x<|end_of_turn|>\n",
          "<think>\n\n\n</think><tool>", "  <s>", "a<mask> b  <mask>", "is this <B>\n\nis", "x <r> \n y", "<unk><unk>", "word", "",
          " ", "   ", "<|im_end|> a", SPACE + "a " + SPACE]


def texts(lines):
    rng = random.Random(7)
    picked = [lines[int(i * len(lines) / NUM_TEXTS)] for i in range(NUM_TEXTS)]
    pools = ["abc \n\t'", "ÀéİıßﬁＡǅ²½Ⅷ", "कखग़ज्‍ञ‌ी़", "👩‍🚀🏽🇮🇳❤️", "中文字 かな", "e\u0301a\u0300\u0315\u0327o\u0304",
             "\u00a0\u200b\u00ad\u2026\ufeff\u2028\x85\x0b", "0123456789०१२", ".,!?;:-_'\"()[]{}<>|/\\@#$%^&*+=~`", "<0x41>"]
    for _ in range(24):
        picked.append("".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 24))))
    for _ in range(8):  # any valid UTF-8
        points = (rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)])
                  for _ in range(10))
        picked.append("".join(map(chr, points)))
    return MARKED + picked


def train_bpe(lines, size, pre, **options):
    tokenizer = Tokenizer(models.BPE(**{k: v for k, v in options.items() if k == "unk_token"}))
    tokenizer.pre_tokenizer = pre
    trainer_options = {k: v for k, v in options.items() if k != "unk_token"}
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=size, show_progress=False, **trainer_options))
    return json.loads(tokenizer.to_str())["model"]


def train_wordpiece(lines):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(lines, trainers.WordPieceTrainer(vocab_size=900, show_progress=False, limit_alphabet=400,
                                                                   special_tokens=["[UNK]", "[CLS]", "[SEP]"]))
    return json.loads(tokenizer.to_str())["model"]


def train_unigram(lines, rules_path):
    model = io.BytesIO()
    rules_path.write_text("".join(f"{a}\t{b}\n" for a, b in CHARSMAP_RULES))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([x for line in lines for x in line.split("\n") if x]), model_writer=model, model_type="unigram",
        vocab_size=1200, byte_fallback=True, character_coverage=0.99, normalization_rule_tsv=str(rules_path),
        num_threads=1, minloglevel=2)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    vocab = [[p.piece, round(p.score, 3)] for p in proto.pieces]
    charsmap = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
    return {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": False}, charsmap


def byte_tokens(model):
    """Adds <0xNN> tokens behind the others."""
    for byte in range(256):
        model["vocab"][f"<0x{byte:02X}>"] = len(model["vocab"])
    return model


def train_models(lines):
    prepared = [line.replace(" ", SPACE) for line in lines]
    rules = pathlib.Path("/tmp/tokenizer_json_rules.tsv")
    unigram, charsmap = train_unigram(lines, rules)
    rules.unlink()
    return {
        "byte_bpe": train_bpe(lines, 1000, pre_tokenizers.ByteLevel(add_prefix_space=False),
                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
        "char_bpe": byte_tokens(train_bpe(prepared, 1000, pre_tokenizers.Split(SPACE, "merged_with_next"), limit_alphabet=300,
                                          special_tokens=["<unk>"], initial_alphabet=[SPACE])),
        "end_bpe": train_bpe([normalizers.StripAccents().normalize_str(normalizers.NFD().normalize_str(x.lower())) for x in lines],
                             600, pre_tokenizers.Whitespace(), unk_token="<unk>", special_tokens=["<unk>"],
                             end_of_word_suffix="</w>", limit_alphabet=200),
        "prefix_bpe": train_bpe(lines, 600, pre_tokenizers.WhitespaceSplit(), unk_token="<unk>", special_tokens=["<unk>"],
                                continuing_subword_prefix="##", limit_alphabet=150),
        "unigram": unigram, "wordpiece": train_wordpiece(lines),
    }, charsmap


def compose(case, trained, charsmap):
    """The tokenizer.json of a case; tokenizer_json_test.cc does the same."""
    model = json.loads(json.dumps(trained[case["model"]])) | case.get("options", {})
    if model.pop("string_merges", False):
        model["merges"] = [" ".join(pair) for pair in model["merges"]]
    vocab = model["vocab"]
    ids = {piece: i for i, (piece, _) in enumerate(vocab)} if isinstance(vocab, list) else dict(vocab)
    tokens = []
    for token in case.get("added_tokens", []):
        ids.setdefault(token["content"], len(ids))
        tokens.append(token | {"id": ids[token["content"]]})
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens,
            "normalizer": fill(case.get("normalizer"), ids, charsmap), "pre_tokenizer": case.get("pre_tokenizer"),
            "post_processor": fill(case.get("post_processor"), ids, charsmap), "decoder": case.get("decoder"), "model": model}


def fill(part, ids, charsmap):
    """Names of tokens become ids where ids belong, "charsmap" becomes the table."""
    if part == "charsmap":
        return {"type": "Precompiled", "precompiled_charsmap": charsmap}
    if isinstance(part, list):
        return [fill(p, ids, charsmap) for p in part]
    if not isinstance(part, dict):
        return part
    out = {key: fill(value, ids, charsmap) for key, value in part.items()}
    if "ids" in out:
        out["ids"] = [ids[name] for name in out["ids"]]
    for key in ("sep", "cls"):
        if key in out:
            out[key] = [out[key][0], ids[out[key][1]]]
    return out


def decode(tokenizer, ids, skip):
    """None where the reference crashes: its Strip decoder reads before the start of a token that its start count ate up."""
    try:
        return tokenizer.decode(ids, skip_special_tokens=skip)
    except BaseException as error:  # pyo3's PanicException is no Exception
        if "index out of bounds" not in str(error):
            raise
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dump", type=pathlib.Path, help="also write every case as a tokenizer.json file into this folder")
    args = parser.parse_args()
    lines = make_lines(2000, seed=20)
    trained, charsmap = train_models(lines)
    written = {"charsmap": charsmap, "models": trained, "cases": CASES}
    data = json.dumps(written, ensure_ascii=False, separators=(",", ":")) + "\n"
    (HERE / "tokenizer_json_cases.json").write_text(data, encoding="utf-8")
    tokenizers, added_tokens = {}, {}
    for name, case in CASES.items():
        composed = compose(case, trained, charsmap)
        added_tokens[name] = composed["added_tokens"]
        text = json.dumps(composed, ensure_ascii=False)
        tokenizers[name] = Tokenizer.from_str(text)
        if args.dump:
            (args.dump / f"{name}.json").write_text(text, encoding="utf-8")
    rows = []
    for text in texts(lines):
        row = {"text": text, "ids": {}, "decoded": {}, "visible": {}}
        for name, tokenizer in tokenizers.items():
            ids = tokenizer.encode(text).ids
            row["ids"][name] = ids
            if any(t["content"] != tokenizer.id_to_token(t["id"]) and t["id"] in ids for t in added_tokens[name]):
                row["decoded"][name] = row["visible"][name] = None  # 0.23 shows an added token's normalized form
                continue
            decoded, visible = (decode(tokenizer, ids, skip) for skip in (False, True))
            if decoded != text:
                row["decoded"][name] = decoded
            if visible != decoded:
                row["visible"][name] = visible
        rows.append(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
    (HERE / "tokenizer_json_texts.jsonl").write_text("".join(rows), encoding="utf-8")
    print(f"{len(CASES)} cases, {len(rows)} texts, {len(data.encode())} + {len(''.join(rows).encode())} bytes")


if __name__ == "__main__":
    main()
