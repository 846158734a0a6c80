#!/usr/bin/env python3
"""What FP8 costs SmolLM2, apart from our code: a plain PyTorch forward pass on the CPU that quantises by the rules of --quantization
fp8, over the windows of `vayu eval`. Of the server only the tokenizer takes part. Residual, linears, probabilities and attention are
rounded to BF16 as in the CUDA step, FP8 is that of ops/cuda/types.h. Needs torch, gguf (PyPI) and, for speed, a BLAS of its own.

Writes bench/results/fp8_reference.json: change of perplexity against BF16 in percent, its standard error over tokens, and the mean
divergence from BF16 in thousandths of a nat, which is the steadier measure. Names that begin with `some_` are of the first 2,000
tokens and tell where the cost comes from; the others are rules as a whole, with the share of linear weights that are FP8.

    bench/fp8_reference.py [--tokens N] [--out FILE]
"""
import argparse
import dataclasses
import math
import time
import typing

import common
import gguf
import torch

WINDOW, STRIDE = 512, 256
KINDS = ("qkv", "o", "gate_up", "down")
LAYERS, HEADS, KV_HEADS, DIM, EPS, ROPE_BASE = 30, 9, 3, 64, 1e-5, 1e5
F8_MAX, GROUP = 448.0, 128


def bf16(x):
    return x.bfloat16().float()


def e4m3(x):
    """To the nearest number of E4M3, ties to even, saturated."""
    bits = x.view(torch.int32)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & ~0xFFFFF).view(torch.float32)
    small = (x + 1.5 * 2.0 ** 14) - 1.5 * 2.0 ** 14  # multiples of 2^-9
    return torch.where(x.abs() < 2.0 ** -6, small, normal).clamp(-F8_MAX, F8_MAX)


def quantize(x, group=0):
    """Rows under one scale each, or under one for every `group` columns."""
    parts = x.view(*x.shape[:-1], -1, group or x.shape[-1])
    peak = parts.abs().amax(-1, keepdim=True)
    scale = torch.where(peak < 1e-30, torch.ones_like(peak), peak / F8_MAX)
    return (e4m3(parts / scale) * scale).view(x.shape)


def quantize_weights(w, search):
    """One scale a row: by the row's peak, or with search the best of sixteen from there to twice that, by squared error."""
    peak = w.abs().amax(-1, keepdim=True) / F8_MAX
    best, least = None, None
    for i in range(16 if search else 1):
        scale = peak * 2 ** (i / 16)
        got = e4m3(w / scale) * scale
        error = ((got - w) ** 2).sum(-1, keepdim=True)
        best, least = (got, error) if best is None else (torch.where(error < least, got, best), torch.minimum(error, least))
    return best


@dataclasses.dataclass
class Rule:
    weights: typing.Callable = lambda layer, kind: False  # whether a linear's weights are FP8
    inputs: typing.Callable = lambda layer, kind: False   # and its inputs
    groups: dict = dataclasses.field(default_factory=lambda: {"down": GROUP})  # columns under one scale of the inputs
    kv: str = "bf16"                                      # bf16, fp8 (scale 1) or fp8_scaled (a scale a token and head)
    search: bool = False                                  # for scales of weights


def both(chosen, **fields):
    return Rule(weights=chosen, inputs=chosen, **fields)


def read_model(path):
    """Tensors as the loader hands them on: dequantised and rounded to BF16. q and k stay in GGUF's order, in which rotated pairs are
    neighbours."""
    tensors = {t.name: bf16(torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).copy())) for t in gguf.GGUFReader(path).tensors}
    model = {"embedding": tensors["token_embd.weight"], "output_norm": tensors["output_norm.weight"], "layers": []}
    for i in range(LAYERS):
        at = lambda name: tensors[f"blk.{i}.{name}.weight"]
        model["layers"].append({
            "attention_norm": at("attn_norm"), "mlp_norm": at("ffn_norm"), "o": at("attn_output"), "down": at("ffn_down"),
            "qkv": torch.cat([at("attn_q"), at("attn_k"), at("attn_v")]), "gate_up": torch.cat([at("ffn_gate"), at("ffn_up")])})
    return model


def norm(x, weight):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * weight


def rotate(x, positions):
    angles = positions[:, None] * ROPE_BASE ** (-torch.arange(0, DIM, 2) / DIM)
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class Forward:
    def __init__(self, model, rule):
        self.rule, self.model = rule, model
        self.weights = [{kind: quantize_weights(layer[kind], rule.search) if rule.weights(i, kind) else layer[kind] for kind in KINDS}
                        for i, layer in enumerate(model["layers"])]

    def linear(self, i, kind, x):
        x = quantize(x, self.rule.groups.get(kind, 0)) if self.rule.inputs(i, kind) else bf16(x)
        return x @ self.weights[i][kind].T

    def attention(self, qkv):
        sequences, length, _ = qkv.shape
        q, k, v = (part.view(sequences, length, -1, DIM).transpose(1, 2)
                   for part in qkv.split([HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM], -1))
        positions = torch.arange(length, dtype=torch.float32)
        q, k = bf16(rotate(q, positions)), rotate(k, positions)
        if self.rule.kv == "fp8":
            k, v = e4m3(k), e4m3(v)
        elif self.rule.kv == "fp8_scaled":
            k, v = quantize(k), quantize(v)
        else:
            k = bf16(k)
        q = q.reshape(sequences, KV_HEADS, -1, DIM)  # the queries of a key's head, head over head
        scores = (q @ k.transpose(-1, -2)).view(sequences, HEADS, length, length) / math.sqrt(DIM)
        scores += torch.full((length, length), -math.inf).triu(1)
        p = torch.softmax(scores, -1)
        out = bf16(p).view(sequences, KV_HEADS, -1, length) @ v
        return bf16(out.view(sequences, HEADS, length, DIM).transpose(1, 2).reshape(sequences, length, -1))

    def __call__(self, ids):
        """Normed rows before the head, (sequences, length, hidden)."""
        residual = self.model["embedding"][ids]
        for i, layer in enumerate(self.model["layers"]):
            qkv = bf16(self.linear(i, "qkv", norm(residual, layer["attention_norm"])))
            residual = bf16(residual + bf16(self.linear(i, "o", self.attention(qkv))))
            gate, up = self.linear(i, "gate_up", norm(residual, layer["mlp_norm"])).chunk(2, -1)
            residual = bf16(residual + bf16(self.linear(i, "down", torch.nn.functional.silu(gate) * up)))
        return bf16(norm(residual, self.model["output_norm"]))


def scored_rows(forward, ids):
    """Rows before the head for every token but the first, in order: the windows of apps/eval/windows.cc."""
    windows, scored = [], 1
    for begin in range(0, len(ids), STRIDE):
        end = min(begin + WINDOW, len(ids))
        windows.append((begin, end, scored))
        scored = end
        if scored == len(ids):
            break
    rows = {}
    full = [w for w in windows if w[1] - w[0] == WINDOW]
    for some in [full[i:i + 8] for i in range(0, len(full), 8)] + [[w] for w in windows if w not in full]:
        out = forward(torch.tensor([ids[begin:end - 1] for begin, end, _ in some]))
        rows |= {window: out[i][window[2] - window[0] - 1:] for i, window in enumerate(some)}
    return torch.cat([rows[window] for window in windows])


class Meter:
    """Scores of rules beside those of the first one measured."""

    def __init__(self, model, ids):
        self.model, self.ids, self.reference = model, ids, None
        self.targets = torch.tensor(ids[1:])

    def measure(self, rule):
        rows = scored_rows(Forward(self.model, rule), self.ids)
        head = self.model["embedding"].T
        if self.reference is None:
            self.reference = [torch.log_softmax(part @ head, -1) for part in rows.split(1000)]
        kl, losses, base = 0.0, [], []
        for i, part in enumerate(rows.split(1000)):
            scores, reference = torch.log_softmax(part @ head, -1), self.reference[i]
            target = self.targets[1000 * i:1000 * i + len(part)]
            kl += (reference.exp() * (reference - scores)).sum().item()
            losses.append(-scores.gather(1, target[:, None])[:, 0])
            base.append(-reference.gather(1, target[:, None])[:, 0])
        loss, change = torch.cat(losses).double(), (torch.cat(losses) - torch.cat(base)).double()
        return {"perplexity": loss.mean().exp().item(), "percent": 100 * math.expm1(change.mean().item()),
                "standard_error_percent": 100 * change.std().item() / math.sqrt(len(change)), "kl_millinats": 1000 * kl / len(change)}

    def f8_share(self, rule):
        sizes = [(layer[kind].numel(), rule.weights(i, kind)) for i, layer in enumerate(self.model["layers"]) for kind in KINDS]
        return sum(n for n, f8 in sizes if f8) / sum(n for n, _ in sizes)


def every(layer, kind):
    return True


def only(*kinds, layers=range(LAYERS)):
    return lambda layer, kind: kind in kinds and layer in layers


BY_64 = dict.fromkeys(KINDS, 64)
SOME = {kind: both(only(kind)) for kind in KINDS} | {"last_5_layers": both(only(*KINDS, layers=range(25, 30)))}
RULES = {
    "fp8": both(every, search=True),
    "fp8_weights": Rule(weights=every, search=True),
    "fp8_inputs": Rule(inputs=every),
    "fp8_kv": Rule(kv="fp8"),
    "fp8_and_kv": both(every, kv="fp8", search=True),
    "unsearched": both(every),  # a scale of weights by the peak of its row
    "unsearched_weights": Rule(weights=every),
    "unsearched_and_kv": both(every, kv="fp8"),
    "scaled_kv": Rule(kv="fp8_scaled"),
    "inputs_by_64": both(every, groups=BY_64),
    "inputs_by_64_search": both(every, groups=BY_64, search=True),
    "gate_up": both(only("gate_up"), groups=BY_64, search=True),
    "gate_up_25_layers": both(only("gate_up", layers=range(25)), groups=BY_64, search=True),
    "gate_up_25_layers_scaled_kv": both(only("gate_up", layers=range(25)), groups=BY_64, search=True, kv="fp8_scaled"),
}


def measure_all(meter, rules, prefix=""):
    metrics = {f"{prefix}bf16_perplexity": meter.measure(Rule())["perplexity"]}
    for name, rule in rules.items():
        start = time.perf_counter()
        score = meter.measure(rule) | {"f8_share": meter.f8_share(rule)}
        print(f"{prefix}{name}: " + ", ".join(f"{key} {value:.3f}" for key, value in score.items()),
              f"({time.perf_counter() - start:.0f} s)", flush=True)
        metrics |= {f"{prefix}{name}_{key}": value for key, value in score.items()}
    return metrics


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--out", help="file in place of bench/results/fp8_reference.json")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    text = (common.ROOT / "tests/data/sarvam-tiny/heldout/en.txt").read_text()
    with common.vayu_server(8133) as server:
        ids = common.post(server.url + "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"][:options.tokens]
    model = read_model(common.MODEL)
    metrics = measure_all(Meter(model, ids), RULES) | measure_all(Meter(model, ids[:2000]), SOME, "some_")
    common.write_result("fp8_reference", metrics, f"SmolLM2-135M Q4_1, {len(ids)} tokens of English, torch {torch.__version__}: "
                        "FP8 by the rules of the CUDA backend against BF16, and other rules", path=options.out)


if __name__ == "__main__":
    main()
