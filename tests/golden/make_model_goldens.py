#!/usr/bin/env python3
"""Greedy continuations and logits of the default model from transformers, in float32.

    make_model_goldens.py MODEL.gguf OUT_DIR

Needs torch, transformers, gguf and tokenizers (a GPU is not needed). Writes
  smollm2_greedy.json   prompts, their token ids, the greedy ids, and the sampled vocabulary ids
  smollm2_logits.bin    for every position of prompt + continuation: float32 (2 * 8) values, 8 top logits then 8 logits
                        of fixed vocabulary ids, then uint16 (8) ids of the top logits
The test that reads them is src/model/golden_test.cc.
"""
import json
import os
import struct
import sys

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from gguf import GGUFReader
from transformers import AutoModelForCausalLM

NEW_TOKENS = 96
TOP = 8


def chat(text):
    return (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    )


PROMPTS = [
    chat("What is the capital of India?"),
    chat("Explain in two sentences why the sky is blue."),
    chat("Write a short poem about the monsoon."),
    chat("List five fruits that grow in Kerala."),
    "The history of the railway began when",
    "Once upon a time in a small village by the sea, there lived",
    "Photosynthesis is the process by which",
    "In 1969, the first humans landed on",
    chat("भारत की राजधानी क्या है?"),
    "नमस्ते, मेरा नाम",
    "हिन्दी भाषा का इतिहास बहुत पुराना है।",
    "आज मौसम बहुत अच्छा है और हम",
    chat("தமிழ்நாட்டின் தலைநகரம் எது?"),
    "வணக்கம், என் பெயர்",
    "தமிழ் ஒரு செம்மொழி ஆகும்.",
    "இன்று வானிலை மிகவும் நன்றாக",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "#include <vector>\n\n// Returns the sum of all elements.\nint sum(const std::vector<int>& v) {\n",
    "SELECT name, COUNT(*) FROM orders WHERE",
    "<html>\n  <head>\n    <title>",
]


def field(reader, key):
    f = reader.fields[key]
    return [bytes(f.parts[i]).decode("utf-8") for i in f.data] if f.types[-1].name == "STRING" else \
        [f.parts[i].tolist()[0] for i in f.data]


def reference_tokenizer(reader):
    tokens = field(reader, "tokenizer.ggml.tokens")
    types = field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(m.split(" ")) for m in field(reader, "tokenizer.ggml.merges")]
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types) if k == 3])
    return tok


def main():
    path, out = sys.argv[1], sys.argv[2]
    torch.set_num_threads(os.cpu_count())
    torch.backends.cuda.matmul.allow_tf32 = False
    reader = GGUFReader(path)
    tok = reference_tokenizer(reader)
    model = AutoModelForCausalLM.from_pretrained(os.path.dirname(os.path.abspath(path)), gguf_file=os.path.basename(path),
                                                 dtype=torch.float32, attn_implementation="eager")
    model.eval()
    print(model.config)
    fixed = np.random.default_rng(2026).choice(model.config.vocab_size, TOP, replace=False).astype(int).tolist()
    cases, blob = [], bytearray()
    for text in PROMPTS:
        ids = tok.encode(text, add_special_tokens=False).ids
        full = torch.tensor([ids])
        with torch.no_grad():
            for _ in range(NEW_TOKENS):  # end tokens do not stop it: more positions to compare
                full = torch.cat([full, model(full).logits[:, -1].argmax(-1, keepdim=True)], 1)
            logits = model(full).logits[0].float()
        top = logits.topk(TOP, -1)
        for t in range(full.shape[1]):
            blob += np.concatenate([top.values[t].numpy(), logits[t, fixed].numpy()]).astype("<f4").tobytes()
            blob += struct.pack(f"<{TOP}H", *top.indices[t].tolist())
        cases.append({"text": text, "prompt_ids": ids, "greedy_ids": full[0, len(ids):].tolist()})
        print(repr(tok.decode(full[0].tolist(), skip_special_tokens=False))[:300], flush=True)
    json.dump({"model": os.path.basename(path), "fixed_ids": fixed, "top": TOP, "cases": cases},
              open(os.path.join(out, "smollm2_greedy.json"), "w"), ensure_ascii=False, indent=0)
    open(os.path.join(out, "smollm2_logits.bin"), "wb").write(blob)


main()
