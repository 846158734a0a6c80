#!/usr/bin/env python3
"""Trains sarvam-tiny, a sarvam_moe model of 12 million parameters, on one GPU: train.py --data .train --out DIR --minutes 9

Reads what make_tokenizer.py packed; writes DIR/sarvam-tiny (a checkpoint under the published names of the 30B, with configuration,
tokenizer and reference.json) and DIR/train_log.jsonl. The experts are computed as one dense layer whose hidden values are
multiplied by the routing weights (zero for experts not chosen): at this size that is faster than sorting tokens.
The selection bias moves by the sign of each expert's load error after every step; there is no balance loss.
"""
import argparse
import contextlib
import json
import math
import shutil
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from checkpoint import write_safetensors
from reference import Reference, decode, measure

CONFIG = {
    "architectures": ["SarvamMoEForCausalLM"], "model_type": "sarvam_moe", "vocab_size": 8192, "hidden_size": 256,
    "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 512,
    "moe_intermediate_size": 96, "moe_shared_expert_intermediate_size": 96, "num_experts": 16, "num_experts_per_tok": 4,
    "num_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "score_function": "sigmoid",
    "norm_topk_prob": True, "routed_scaling_factor": 2.5, "router_dtype": "fp32", "moe_router_enable_expert_bias": True,
    "use_qk_norm": True, "use_qkv_bias": False, "use_bias": False, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "rope_theta": 10000, "rope_scaling": None, "max_position_embeddings": 2048, "max_window_layers": 6,
    "tie_word_embeddings": False, "pad_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16", "initializer_range": 0.02,
}
HIDDEN, EXPERTS, WIDTH, TOP_K = (CONFIG[key] for key in ("hidden_size", "num_experts", "moe_intermediate_size", "num_experts_per_tok"))
CONTEXT = 512
# Share of the training windows by source.
MIX = {"chat": 0.15, "en": 0.225, "hi": 0.125, "bn": 0.125, "ta": 0.125, "te": 0.125, "mr": 0.125}
DROPOUT = 0.15
PEAK_LR = 2e-3
WEIGHT_DECAY = 0.1
WARMUP_STEPS = 200
BIAS_STEP = 1e-3
EVAL_STEPS = 250
# Seconds of the budget kept for the export and the reference.
RESERVE_S = 45


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + CONFIG["rms_norm_eps"]) * self.weight


def matrix(rows, columns, scale=1.0):
    return nn.Parameter(torch.randn(rows, columns) * (scale * CONFIG["initializer_range"]))


# Projections that write to the residual stream start smaller, by the number of residual adds.
OUT_SCALE = (2 * CONFIG["num_hidden_layers"]) ** -0.5


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads, self.kv_heads, self.dim = (CONFIG[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        self.query_key_value = matrix((self.heads + 2 * self.kv_heads) * self.dim, HIDDEN)
        self.query_layernorm, self.key_layernorm = Norm(self.dim), Norm(self.dim)
        self.dense = matrix(HIDDEN, self.heads * self.dim, OUT_SCALE)

    def forward(self, x, cos, sin):
        batch, tokens, _ = x.shape
        qkv = F.linear(x, self.query_key_value).view(batch, tokens, -1, self.dim).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], 1)
        q, k = rotate(self.query_layernorm(q), cos, sin), rotate(self.key_layernorm(k), cos, sin)
        k, v = (t.to(v.dtype).repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        mixed = causal_attention(q.to(v.dtype), k, v)
        return F.linear(mixed.transpose(1, 2).reshape(batch, tokens, -1), self.dense)


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def causal_attention(q, k, v):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(2, 3)).float() * q.shape[-1] ** -0.5
    return scores.masked_fill(future, -math.inf).softmax(-1).to(v.dtype) @ v


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = matrix(width, HIDDEN), matrix(width, HIDDEN), matrix(HIDDEN, width, OUT_SCALE)

    def forward(self, x):
        return F.linear(F.silu(F.linear(x, self.gate_proj)) * F.linear(x, self.up_proj), self.down_proj)


class Moe(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = matrix(EXPERTS, HIDDEN)
        self.register_buffer("expert_bias", torch.zeros(EXPERTS))
        self.register_buffer("load", torch.zeros(EXPERTS))  # tokens sent to each expert since the last update
        self.gate_proj, self.up_proj = matrix(EXPERTS * WIDTH, HIDDEN), matrix(EXPERTS * WIDTH, HIDDEN)  # expert-major rows
        self.down_proj = matrix(HIDDEN, EXPERTS * WIDTH, OUT_SCALE)  # expert-major columns
        self.shared_experts = Mlp(WIDTH)

    def routing(self, x):
        """Weights of all experts (num_tokens, num_experts), zero for those not chosen; fp32."""
        with torch.autocast(x.device.type, enabled=False):
            scores = torch.sigmoid(F.linear(x.float(), self.gate))
            chosen = (scores.detach() + self.expert_bias).topk(TOP_K, -1).indices
            weight = scores.gather(-1, chosen)
            weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * CONFIG["routed_scaling_factor"]
            self.load += torch.zeros_like(scores).scatter(-1, chosen, 1.0).sum(0)
            return torch.zeros_like(scores).scatter(-1, chosen, weight)

    def forward(self, x):
        flat = x.reshape(-1, HIDDEN)
        hidden = F.silu(F.linear(flat, self.gate_proj)) * F.linear(flat, self.up_proj)
        hidden = hidden.view(-1, EXPERTS, WIDTH) * self.routing(flat)[:, :, None].to(hidden.dtype)
        return (F.linear(hidden.view(-1, EXPERTS * WIDTH), self.down_proj) + self.shared_experts(flat)).view_as(x)

    def balance(self):
        self.expert_bias += BIAS_STEP * torch.sign(self.load.mean() - self.load)


class Block(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.input_layernorm, self.attention, self.post_attention_layernorm = Norm(HIDDEN), Attention(), Norm(HIDDEN)
        self.mlp = Mlp(CONFIG["intermediate_size"]) if layer < CONFIG["first_k_dense_replace"] else Moe()
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x, cos, sin):
        x = x + self.dropout(self.attention(self.input_layernorm(x), cos, sin))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.word_embeddings = matrix(CONFIG["vocab_size"], HIDDEN)
        self.layers = nn.ModuleList(Block(layer) for layer in range(CONFIG["num_hidden_layers"]))
        self.norm, self.lm_head, self.dropout = Norm(HIDDEN), matrix(CONFIG["vocab_size"], HIDDEN), nn.Dropout(DROPOUT)
        half = CONFIG["head_dim"] // 2
        angle = torch.arange(CONTEXT).double()[:, None] * CONFIG["rope_theta"] ** (-torch.arange(half).double() / half)
        self.register_buffer("cos", angle.cos().float())
        self.register_buffer("sin", angle.sin().float())

    def forward(self, ids):
        x = self.dropout(F.embedding(ids, self.word_embeddings))
        cos, sin = self.cos[:ids.shape[1]], self.sin[:ids.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.linear(self.norm(x), self.lm_head)

    def experts(self):
        return [layer.mlp for layer in self.layers if isinstance(layer.mlp, Moe)]


class Data:
    """Training windows from the packed token arrays, drawn on the device."""

    def __init__(self, folder, device, seed=1):
        arrays = {name: np.load(folder / f"train_{name}.npy") for name in MIX}
        self.names = list(MIX)
        self.device = device
        self.size = sum(map(len, arrays.values()))
        self.tokens = torch.from_numpy(np.concatenate(list(arrays.values())).astype(np.int32)).to(device)
        lengths = torch.tensor([len(arrays[name]) for name in self.names])
        self.first = (lengths.cumsum(0) - lengths).to(device)
        self.choices = (lengths - CONTEXT - 1).to(device)
        self.mix = torch.tensor([MIX[name] for name in self.names], device=device)
        # Half of the chat windows begin where a conversation does.
        self.chat = self.names.index("chat")
        starts = np.flatnonzero(arrays["chat"] == 1) + 1
        self.chat_starts = torch.from_numpy(starts[starts < len(arrays["chat"]) - CONTEXT - 1]).to(device)
        self.random = torch.Generator(device=device)
        self.random.manual_seed(seed)

    def batch(self, rows):
        """ids (rows, CONTEXT + 1) and the source of each row."""
        source = torch.multinomial(self.mix, rows, True, generator=self.random)
        at = (torch.rand(rows, generator=self.random, device=self.device) * self.choices[source]).long()
        begin = self.chat_starts[torch.randint(len(self.chat_starts), (rows,), generator=self.random, device=self.device)]
        aligned = (source == self.chat) & (torch.rand(rows, generator=self.random, device=self.device) < 0.5)
        at = torch.where(aligned, begin, at) + self.first[source]
        return self.tokens[at[:, None] + torch.arange(CONTEXT + 1, device=self.device)].long(), source


def precision(device):
    return torch.autocast("cuda", dtype=torch.bfloat16) if device == "cuda" else contextlib.nullcontext()


def token_losses(model, ids, device):
    with precision(device):
        logits = model(ids[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(ids), -1)


@torch.no_grad()
def validate(model, folder, device):
    """Mean loss by language on the validation text, in windows without overlap; the router's load is left as it was."""
    model.eval()
    losses = {}
    for name in MIX:
        if name != "chat":
            ids = np.load(folder / f"valid_{name}.npy").astype(np.int64)
            rows = (len(ids) - 1) // CONTEXT
            windows = np.stack([ids[i * CONTEXT:i * CONTEXT + CONTEXT + 1] for i in range(rows)])
            losses[name] = float(token_losses(model, torch.from_numpy(windows).to(device), device).mean())
    for moe in model.experts():
        moe.load.zero_()
    model.train()
    return losses


def gini(load):
    ranked = load.sort().values.double()
    n = len(ranked)
    return float(2 * (torch.arange(1, n + 1, dtype=torch.float64) * ranked).sum() / (n * ranked.sum()) - (n + 1) / n)


def load_report(loads):
    return [{"max_share": round(float(load.max() / load.sum()), 4), "gini": round(gini(load.cpu()), 4)} for load in loads]


def optimizer(model, device):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    extra = {"fused": True} if device == "cuda" else {}
    return torch.optim.AdamW(groups, lr=PEAK_LR, betas=(0.9, 0.95), eps=1e-8, **extra)


def fit(model, data, args, device, began, log):
    """Trains until the time or the epochs are spent; leaves the weights with the best validation loss in the model."""
    adam, epochs, step, best, kept = optimizer(model, device), 0.0, 0, math.inf, None
    deadline = args.minutes * 60 - min(RESERVE_S, args.minutes * 20)
    sums, counts = torch.zeros(len(MIX), device=device), torch.zeros(len(MIX), device=device)
    loads = [torch.zeros(EXPERTS, device=device) for _ in model.experts()]
    begun = time.monotonic() - began
    while True:
        elapsed = time.monotonic() - began
        progress = max((elapsed - begun) / max(deadline - begun, 1.0), epochs / args.epochs)
        if step % EVAL_STEPS == 0 or progress >= 1:
            losses = validate(model, args.data, device)
            mean = sum(losses.values()) / len(losses)
            train_loss = {n: round(float(s / c), 4) for n, s, c in zip(data.names, sums, counts) if c}
            log({"step": step, "seconds": round(elapsed, 1), "epochs": round(epochs, 2), "train": train_loss,
                 "valid": {n: round(v, 4) for n, v in losses.items()}, "valid_mean": round(mean, 4), "experts": load_report(loads) if step else []})
            for total in (sums, counts, *loads):
                total.zero_()
            if mean < best:
                best, kept = mean, {name: tensor.clone() for name, tensor in model.state_dict().items()}
        if progress >= 1:
            break
        rate = PEAK_LR * min(1.0, (step + 1) / WARMUP_STEPS) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in adam.param_groups:
            group["lr"] = rate
        ids, source = data.batch(args.batch)
        rows = token_losses(model, ids, device).mean(1)
        rows.mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        sums.index_add_(0, source, rows.detach())
        counts.index_add_(0, source, torch.ones_like(rows))
        for moe, load in zip(model.experts(), loads):
            moe.balance()
            load += moe.load
            moe.load.zero_()
        step += 1
        epochs += args.batch * CONTEXT / data.size
        if device == "cuda" and step % 20 == 0:
            torch.cuda.synchronize()  # the clock must see the work, not the queue
    model.load_state_dict(kept)
    return best


def published(model):
    """Tensors under the published names: bf16, but router, bias and norms fp32."""
    def narrow(tensor):
        return tensor.detach().to(torch.bfloat16)

    def mlp(prefix, gate, up, down):
        for name, tensor in (("gate_proj", gate), ("up_proj", up), ("down_proj", down)):
            tensors[f"{prefix}.{name}.weight"] = narrow(tensor)

    tensors = {"model.word_embeddings.weight": narrow(model.word_embeddings)}
    for i, layer in enumerate(model.layers):
        prefix, attention = f"model.layers.{i}", layer.attention
        tensors[f"{prefix}.input_layernorm.weight"] = layer.input_layernorm.weight
        tensors[f"{prefix}.attention.query_key_value.weight"] = narrow(attention.query_key_value)
        tensors[f"{prefix}.attention.query_layernorm.weight"] = attention.query_layernorm.weight
        tensors[f"{prefix}.attention.key_layernorm.weight"] = attention.key_layernorm.weight
        tensors[f"{prefix}.attention.dense.weight"] = narrow(attention.dense)
        tensors[f"{prefix}.post_attention_layernorm.weight"] = layer.post_attention_layernorm.weight
        if not isinstance(layer.mlp, Moe):
            mlp(f"{prefix}.mlp", layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)
            continue
        moe = layer.mlp
        tensors[f"{prefix}.mlp.gate.weight"] = moe.gate
        tensors[f"{prefix}.mlp.gate.expert_bias"] = moe.expert_bias
        for e in range(EXPERTS):
            rows = slice(e * WIDTH, (e + 1) * WIDTH)
            mlp(f"{prefix}.mlp.experts.{e}", moe.gate_proj[rows], moe.up_proj[rows], moe.down_proj[:, rows])
        shared = moe.shared_experts
        mlp(f"{prefix}.mlp.shared_experts", shared.gate_proj, shared.up_proj, shared.down_proj)
    tensors["model.norm.weight"] = model.norm.weight
    tensors["lm_head.weight"] = narrow(model.lm_head)
    return tensors


def export(model, data_folder, folder):
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", published(model))
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    added = json.loads((data_folder / "tokenizer.json").read_text())["added_tokens"]
    end_of_turn = next(token["id"] for token in added if token["content"] == "<|end_of_turn|>")
    generation = {"pad_token_id": 0, "eos_token_id": [1, end_of_turn], "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(data_folder / name, folder / name)
    return [1, end_of_turn]


@torch.no_grad()
def check_export(model, folder, data_folder, device):
    """The file read back by the reference must give the logits of the trained model, rounded to what the file holds."""
    for parameter in model.parameters():
        if parameter.dim() > 1 and parameter.shape[0] != EXPERTS:
            parameter.copy_(parameter.to(torch.bfloat16))
    model.eval()
    ids = torch.from_numpy(np.load(data_folder / "heldout_hi.npy")[:CONTEXT].astype(np.int64))[None].to(device)
    error = (model(ids) - Reference(folder, device).logits(ids)).abs().amax(-1)
    # A token whose fourth and fifth expert tie may choose either.
    agree = float((error < 1e-3).float().mean())
    print(f"export: {agree:.1%} of positions within 1e-3 of the reference, median error {float(error.median()):.2e}")
    if agree < 0.98:
        raise RuntimeError("the exported checkpoint does not compute what the trained model computes")


def unigram_perplexity(train, heldout):
    """Perplexity of held-out tokens under the frequencies of the same language's training tokens, one added to each."""
    counts = np.bincount(train, minlength=CONFIG["vocab_size"]) + 1.0
    return float(np.exp(-np.log(counts / counts.sum())[heldout[1:]].mean()))


@torch.no_grad()
def expert_load(model, folder, device):
    for moe in model.experts():
        moe.load.zero_()
    for name in MIX:
        if name != "chat":
            ids = np.load(folder / f"heldout_{name}.npy").astype(np.int64)
            rows = np.stack(np.split(ids[:len(ids) // CONTEXT * CONTEXT], len(ids) // CONTEXT))
            for i in range(0, len(rows), 16):
                model(torch.from_numpy(rows[i:i + 16]).to(device))
    return load_report([moe.load for moe in model.experts()])


def report(model, args, folder, stop, device):
    result = measure(folder, device, args.data)
    for name, entry in result["languages"].items():
        entry["unigram_perplexity"] = unigram_perplexity(np.load(args.data / f"train_{name}.npy"), np.load(args.data / f"heldout_{name}.npy"))
        print(f"{name}: held-out perplexity {entry['perplexity']:.2f}, unigram {entry['unigram_perplexity']:.1f}, "
              f"{entry['unigram_perplexity'] / entry['perplexity']:.1f} times below (at least 8 wanted)")
    result["expert_load_by_layer"] = expert_load(model, args.data, device)
    print("expert load by layer on the held-out text:", result["expert_load_by_layer"])
    reference, result["greedy"] = Reference(folder, device), []
    for prompt in json.loads((args.data / "prompts.json").read_text()):
        ids = reference.continue_greedily(prompt["ids"], 40, stop)
        result["greedy"].append({**prompt, "output_ids": ids[len(prompt["ids"]):]})
        print(f"{prompt['lang']}: {json.dumps(decode(folder, ids), ensure_ascii=False)}")
    (folder / "reference.json").write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n")


def main():
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9, help="budget of the whole run, export and reference included")
    parser.add_argument("--epochs", type=float, default=10, help="stop after so many passes, if the time allows them")
    parser.add_argument("--batch", type=int, default=32, help=f"windows of {CONTEXT} tokens a step")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    args.out.mkdir(parents=True, exist_ok=True)
    model, data = Model().to(device), Data(args.data, device)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {data.size} training tokens, {device}", flush=True)
    with open(args.out / "train_log.jsonl", "w") as file:
        def log(entry):
            line = json.dumps(entry)
            print(line, flush=True)
            file.write(line + "\n")
        best = fit(model, data, args, device, began, log)
    folder = args.out / "sarvam-tiny"
    stop = export(model, args.data, folder)
    print(f"best validation loss {best:.4f}, checkpoint {(folder / 'model.safetensors').stat().st_size / 1e6:.2f} MB, "
          f"{time.monotonic() - began:.0f} s", flush=True)
    check_export(model, folder, args.data, device)
    report(model, args, folder, stop, device)
    print(f"done in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
