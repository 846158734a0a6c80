#!/usr/bin/env python3
"""fp32 reference of a sarvam_moe checkpoint in plain PyTorch: held-out perplexity and greedy continuations.

  reference.py MODEL [--tokens DIR] [--out FILE]

The forward pass follows the published model: fused QKV in three blocks, QK-norm then half-split RoPE over the whole head,
sigmoid router whose bias only selects, weights renormalised and scaled. It shares no code with train.py but the reader of the file.
Perplexity: the whole file is one document without a start token. Windows of 512 tokens at a stride of 256; a window scores
the tokens that no earlier window scored, so every token but the first is scored once, and after the first window with at
least 256 tokens of context. Token ids come from DIR/heldout_<lang>.npy, or else from MODEL/heldout/<lang>.txt and tokenizer.json.
"""
import argparse
import json
import math
import re
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from checkpoint import read_safetensors

WINDOW = 512
STRIDE = 256
WINDOWS_PER_BATCH = 16


class Reference:
    def __init__(self, folder, device="cpu"):
        self.config = json.loads((Path(folder) / "config.json").read_text())
        self.device = device
        self.weights = {name: tensor.to(device) for name, tensor in read_safetensors(Path(folder) / "model.safetensors").items()}

    def norm(self, x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"]) * self.weights[name]

    def rope(self, x):  # (batch, heads, tokens, head_dim)
        half = x.shape[-1] // 2
        frequency = self.config["rope_theta"] ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
        angle = torch.arange(x.shape[2], dtype=torch.float64, device=x.device)[:, None] * frequency
        cos, sin = angle.cos().float(), angle.sin().float()
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def attention(self, x, prefix):
        c, w = self.config, self.weights
        batch, tokens, _ = x.shape
        heads, kv_heads, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        qkv = (x @ w[prefix + "query_key_value.weight"].T).view(batch, tokens, heads + 2 * kv_heads, dim).transpose(1, 2)
        q, k, v = qkv[:, :heads], qkv[:, heads:heads + kv_heads], qkv[:, heads + kv_heads:]
        q = self.rope(self.norm(q, prefix + "query_layernorm.weight"))
        k = self.rope(self.norm(k, prefix + "key_layernorm.weight"))
        k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(dim)
        future = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        return mixed.transpose(1, 2).reshape(batch, tokens, heads * dim) @ w[prefix + "dense.weight"].T

    def mlp(self, x, prefix):
        w = self.weights
        hidden = F.silu(x @ w[prefix + "gate_proj.weight"].T) * (x @ w[prefix + "up_proj.weight"].T)
        return hidden @ w[prefix + "down_proj.weight"].T

    def route(self, x, prefix):
        """Experts and their weights for tokens x (num_tokens, hidden): two tensors (num_tokens, experts per token)."""
        c, w = self.config, self.weights
        scores = torch.sigmoid(x @ w[prefix + "gate.weight"].T)
        chosen = (scores + w[prefix + "gate.expert_bias"]).topk(c["num_experts_per_tok"], -1).indices
        weight = scores.gather(-1, chosen)
        return chosen, weight / (weight.sum(-1, keepdim=True) + 1e-20) * c["routed_scaling_factor"]

    def moe(self, x, prefix):
        flat = x.reshape(-1, x.shape[-1])
        chosen, weight = self.route(flat, prefix)
        out = self.mlp(flat, prefix + "shared_experts.")
        for expert in range(self.config["num_experts"]):
            token, slot = (chosen == expert).nonzero(as_tuple=True)
            out.index_add_(0, token, self.mlp(flat[token], f"{prefix}experts.{expert}.") * weight[token, slot][:, None])
        return out.view_as(x)

    @torch.no_grad()
    def logits(self, ids):  # (batch, tokens) -> (batch, tokens, vocabulary)
        x = self.weights["model.word_embeddings.weight"][ids.to(self.device)]
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            x = x + self.attention(self.norm(x, prefix + "input_layernorm.weight"), prefix + "attention.")
            ffn = self.mlp if layer < self.config["first_k_dense_replace"] else self.moe
            x = x + ffn(self.norm(x, prefix + "post_attention_layernorm.weight"), prefix + "mlp.")
        return self.norm(x, "model.norm.weight") @ self.weights["lm_head.weight"].T

    def continue_greedily(self, ids, count, stop):
        ids = list(ids)
        for _ in range(count):
            ids.append(int(self.logits(torch.tensor([ids]))[0, -1].argmax()))
            if ids[-1] in stop:
                break
        return ids


def perplexity(model, ids):
    """(perplexity, scored tokens) of one document."""
    ids = torch.as_tensor(np.asarray(ids, np.int64))
    starts = [0]
    while starts[-1] + WINDOW < len(ids):
        starts.append(starts[-1] + STRIDE)
    by_length = {}
    for start in starts:
        by_length.setdefault(min(WINDOW, len(ids) - start), []).append(start)
    total, scored = 0.0, 0
    for length, group in by_length.items():
        for i in range(0, len(group), WINDOWS_PER_BATCH):
            part = group[i:i + WINDOWS_PER_BATCH]
            windows = torch.stack([ids[start:start + length] for start in part]).to(model.device)
            nll = F.cross_entropy(model.logits(windows)[:, :-1].transpose(1, 2), windows[:, 1:], reduction="none").double()
            for row, start in zip(nll, part):
                fresh = row if start == 0 else row[WINDOW - STRIDE - 1:]  # row[p] scores the token at p + 1 of the window
                total += float(fresh.sum())
                scored += len(fresh)
    return math.exp(total / scored), scored


def token_ids(folder, tokens):
    """{language: ids of its held-out file}."""
    if tokens:
        return {path.stem.split("_")[1]: np.load(path) for path in sorted(Path(tokens).glob("heldout_*.npy"))}
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    return {path.stem: tokenizer.encode(path.read_text(), add_special_tokens=False).ids
            for path in sorted((Path(folder) / "heldout").glob("*.txt"))}


def decode(folder, ids):
    """Text of ids without the tokenizers package: U+2581 is a space and <0xNN> a byte."""
    pieces = {index: piece for piece, index in json.loads((Path(folder) / "tokenizer.json").read_text())["model"]["vocab"].items()}
    raw = b"".join(bytes([int(p[3:5], 16)]) if re.fullmatch(r"<0x[0-9A-F]{2}>", p) else p.replace("\u2581", " ").encode()
                   for p in (pieces[index] for index in ids))
    return raw.decode("utf-8", "replace")


def measure(folder, device, tokens=None):
    model = Reference(folder, device)
    report = {"dtype": "fp32", "window": WINDOW, "stride": STRIDE, "languages": {}}
    for lang, ids in token_ids(folder, tokens).items():
        value, scored = perplexity(model, ids)
        report["languages"][lang] = {"tokens": len(ids), "scored": scored, "perplexity": value}
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=Path, help="folder with heldout_<lang>.npy")
    parser.add_argument("--out", type=Path, help="file for the JSON report (default: standard output)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    text = json.dumps(measure(args.model, args.device, args.tokens), indent=2)
    if args.out:
        args.out.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
