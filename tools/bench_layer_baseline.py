#!/usr/bin/env python3
"""One Mixture-of-Experts layer of sarvam-30b in PyTorch, operator by operator: the baseline of `vayu bench kernels`.

Every operator is timed eagerly in BF16, as a CUDA graph, compiled, and where it multiplies, in FP8 with scales a row
(activations quantised on the fly); the same keys as ours, medians, second-level cache emptied before each call. The
layer is timed eagerly in BF16, and as one graph of the fastest form of each operator.

  tools/bench_layer_baseline.py --tokens 3584 --decode 1,32,64 --context 3650 --json FILE
"""

import argparse
import json
import math
import statistics
import sys

import torch
import torch._dynamo
import torch.nn.functional as F

MODEL = "sarvam-30b"
HIDDEN, Q_HEADS, KV_HEADS, HEAD_DIM = 4096, 64, 4, 64
EXPERTS, TOP_K, FFN, DENSE_FFN, VOCAB = 128, 6, 1024, 8192, 262144
QKV = (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM
# What `vayu bench kernels --baseline` compares with its own model, name by name.
GEOMETRY = {
    "hidden": HIDDEN, "q_heads": Q_HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "experts": EXPERTS, "top_k": TOP_K,
    "expert_ffn": FFN, "dense_ffn": DENSE_FFN, "vocab": VOCAB,
}  # fmt: skip
EPS = 1e-6
BF16, F8 = torch.bfloat16, torch.float8_e4m3fn


def rms_norm(x, weight):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(x.dtype) * weight


def rotate(x, cos, sin):
    low, high = x.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def to_f8(x):
    scale = (x.abs().amax(-1, keepdim=True).float() / 448.0).clamp(min=1e-30)
    return (x.float() / scale).to(F8), scale


def swiglu(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


class Linear:
    """y = x W^T in both precisions; W (out, in), or (experts, out, in)."""

    def __init__(self, *shape):
        self.bf16 = torch.empty(shape, device="cuda", dtype=BF16).normal_(0, 1 / math.sqrt(shape[-1]))
        if len(shape) == 3:  # a few experts at a time: the float copy is large
            pairs = [to_f8(self.bf16[e]) for e in range(shape[0])]
            self.f8 = torch.stack([p[0] for p in pairs])
            self.scale = torch.stack([p[1] for p in pairs])
        else:
            self.f8, self.scale = to_f8(self.bf16)

    def run(self, x, f8):
        if not f8:
            return F.linear(x, self.bf16)
        x8, scale = to_f8(x)
        return torch._scaled_mm(x8, self.f8.t(), scale_a=scale, scale_b=self.scale.t(), out_dtype=BF16)

    def run_groups(self, x, ends, f8):
        if not f8:
            return torch._grouped_mm(x, self.bf16.transpose(1, 2), offs=ends)
        x8, scale = to_f8(x)
        return torch._scaled_grouped_mm(
            x8, self.f8.transpose(1, 2), scale.squeeze(-1), self.scale.squeeze(-1), offs=ends, out_dtype=BF16
        )


class Weights:
    def __init__(self):
        torch.manual_seed(0)
        self.qkv, self.out = Linear(QKV, HIDDEN), Linear(HIDDEN, Q_HEADS * HEAD_DIM)
        self.expert_gate_up, self.expert_down = Linear(EXPERTS, 2 * FFN, HIDDEN), Linear(EXPERTS, HIDDEN, FFN)
        self.shared_gate_up, self.shared_down = Linear(2 * FFN, HIDDEN), Linear(HIDDEN, FFN)
        self.dense_gate_up, self.dense_down = Linear(2 * DENSE_FFN, HIDDEN), Linear(HIDDEN, DENSE_FFN)
        self.head = Linear(VOCAB, HIDDEN)
        self.embedding = torch.randn(VOCAB, HIDDEN, device="cuda", dtype=BF16)
        self.router = torch.randn(EXPERTS, HIDDEN, device="cuda") * (1.5 / math.sqrt(HIDDEN))
        self.bias = torch.zeros(EXPERTS, device="cuda")
        self.norm = torch.empty(HIDDEN, device="cuda", dtype=BF16).normal_(1, 0.3)
        self.head_norm = torch.empty(HEAD_DIM, device="cuda", dtype=BF16).normal_(1, 0.3)


class Layer:
    """The operators for one shape: a prompt of `tokens`, or `tokens` decode rows at `context`."""

    def __init__(self, weights, tokens, context):
        self.w, self.tokens, self.decode = weights, tokens, context > 0
        rows = tokens if self.decode else 1
        length = context if self.decode else tokens
        position = torch.full((tokens,), context - 1.0) if self.decode else torch.arange(tokens).float()
        inverse = 1.0 / (8e6 ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM))
        angle = torch.outer(position, inverse).cuda()[:, None]
        self.cos, self.sin = angle.cos().to(BF16), angle.sin().to(BF16)
        self.keys = torch.randn(rows, length, KV_HEADS, HEAD_DIM, device="cuda", dtype=BF16)
        self.values = torch.randn_like(self.keys)
        token = torch.arange(tokens, device="cuda")
        self.at = (token * length + length - 1) if self.decode else token
        self.range = torch.arange(EXPERTS, device="cuda")
        self.ids = torch.randint(0, VOCAB, (tokens,), device="cuda")
        self.residual = torch.randn(tokens, HIDDEN, device="cuda", dtype=BF16)
        self.logit_rows = self.residual if self.decode else self.residual[-1:]

    def norm_qkv(self, residual, f8=False):
        return self.w.qkv.run(rms_norm(residual, self.w.norm), f8)

    def qk_norm_rope(self, qkv):
        heads = qkv.view(-1, Q_HEADS + 2 * KV_HEADS, HEAD_DIM)
        q, k, v = heads.split([Q_HEADS, KV_HEADS, KV_HEADS], 1)
        q = rotate(rms_norm(q, self.w.head_norm), self.cos, self.sin)
        k = rotate(rms_norm(k, self.w.head_norm), self.cos, self.sin)
        self.keys.view(-1, KV_HEADS, HEAD_DIM).index_copy_(0, self.at, k)
        self.values.view(-1, KV_HEADS, HEAD_DIM).index_copy_(0, self.at, v)
        return q

    def attention(self, q):
        k, v = self.keys.transpose(1, 2), self.values.transpose(1, 2)
        q = q[:, :, None] if self.decode else q.transpose(0, 1)[None]
        out = F.scaled_dot_product_attention(q, k, v, is_causal=not self.decode, enable_gqa=True)
        return (out[:, :, 0] if self.decode else out[0].transpose(0, 1)).reshape(-1, Q_HEADS * HEAD_DIM)

    def o_proj(self, attended, f8=False):
        return self.w.out.run(attended, f8)

    def mlp_norm(self, residual, delta):
        total = residual + delta
        return total, rms_norm(total, self.w.norm)

    def router(self, x):
        score = F.linear(x.float(), self.w.router).sigmoid()
        chosen = (score + self.w.bias).topk(TOP_K, -1).indices
        weight = score.gather(1, chosen)
        weight = 2.5 * weight / (weight.sum(-1, keepdim=True) + 1e-20)
        sorted_ids, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(sorted_ids, self.range, right=True).int()
        return weight.flatten()[order], order // TOP_K, ends

    def routed_experts(self, x, token, ends, f8=False):
        inner = swiglu(self.w.expert_gate_up.run_groups(x[token], ends, f8))
        return self.w.expert_down.run_groups(inner, ends, f8)

    def shared_expert(self, x, f8=False):
        return self.w.shared_down.run(swiglu(self.w.shared_gate_up.run(x, f8)), f8)

    def combine(self, residual, rows, weight, token, shared):
        out = (residual + shared).index_add_(0, token, rows * weight[:, None].to(BF16))
        return out

    def dense_mlp(self, x, f8=False):
        return self.w.dense_down.run(swiglu(self.w.dense_gate_up.run(x, f8)), f8)

    def embed(self, ids):
        return F.embedding(ids, self.w.embedding)

    def head(self, residual, f8=False):
        return self.w.head.run(rms_norm(residual, self.w.norm), f8).float()

    def sampling(self, logits):
        return logits.argmax(-1)

    def whole(self, ops):
        qkv = ops["norm_qkv"](self.residual)
        delta = ops["o_proj"](ops["attention"](ops["qk_norm_rope"](qkv)))
        residual, x = ops["mlp_norm"](self.residual, delta)
        weight, token, ends = ops["router"](x)
        rows = ops["routed_experts"](x, token, ends)
        return ops["combine"](residual, rows, weight, token, ops["shared_expert"](x))


class Timer:
    def __init__(self, repeats):
        self.repeats = repeats
        self.flush = torch.randn(64 << 20, device="cuda")  # 256 MiB, read before each call

    def us(self, call):
        for _ in range(3):
            call()
        pairs = []
        for _ in range(self.repeats):
            self.flush.sum()
            begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
            begin.record()
            call()
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize()
        return 1e3 * statistics.median(b.elapsed_time(e) for b, e in pairs)


def graph_of(call):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def try_time(timer, entry, name, function, args):
    """Times `function` eagerly and as a graph; what does not run is left out, with its reason."""
    try:
        entry[name] = timer.us(lambda: function(*args))
        graph = graph_of(lambda: function(*args))
        entry[name + " graph"] = timer.us(graph.replay)
    except Exception as error:  # noqa: BLE001: PyTorch raises many kinds; a form that is missing is no fault of ours
        torch.cuda.synchronize()
        print(f"  {name}: {type(error).__name__}: {str(error)[:160]}", file=sys.stderr)
        return False
    return True


def summary(op, times):
    best = min(times, key=times.get)
    print(f"  {op:<16}{times['bf16']:10.1f}{times[best]:10.1f}  {best}", file=sys.stderr)
    return {"eager_us": times["bf16"], "best_us": times[best], "best": best, "forms": times}


COMPILED = {
    "norm_qkv", "qk_norm_rope", "o_proj", "mlp_norm", "router", "routed_experts", "shared_expert", "combine",
}  # fmt: skip
MULTIPLIES = {"norm_qkv", "o_proj", "routed_experts", "shared_expert", "dense_mlp", "head"}


def measure(layer, timer, compiled):
    """{operator: {"eager_us", "best_us", "best", "forms"}}"""
    residual = layer.residual
    qkv = layer.norm_qkv(residual)
    q = layer.qk_norm_rope(qkv)
    attended = layer.attention(q)
    delta = layer.o_proj(attended)
    total, x = layer.mlp_norm(residual, delta)
    weight, token, ends = layer.router(x)
    rows = layer.routed_experts(x, token, ends)
    shared = layer.shared_expert(x)
    inputs = {
        "norm_qkv": (residual,), "qk_norm_rope": (qkv,), "attention": (q,), "o_proj": (attended,),
        "mlp_norm": (residual, delta), "router": (x,), "routed_experts": (x, token, ends), "shared_expert": (x,),
        "combine": (total, rows, weight, token, shared), "dense_mlp": (x,), "embedding": (layer.ids,),
        "head": (layer.logit_rows,), "sampling": (layer.head(layer.logit_rows),),
    }  # fmt: skip
    result, fastest = {}, {}
    for op, args in inputs.items():
        plain = layer.embed if op == "embedding" else getattr(layer, op)
        forms = {"bf16": plain}
        if op in MULTIPLIES:
            forms["fp8"] = lambda *a, f=plain: f(*a, f8=True)
        if op in compiled:
            for name in list(forms):
                forms["compiled " + name] = torch.compile(forms[name], dynamic=False)
        times = {}
        for name, function in forms.items():
            try_time(timer, times, name, function, args)
        result[op] = summary(op, times)
        fastest[op] = forms[result[op]["best"].removesuffix(" graph")]
    times = {}
    plain = {op: getattr(layer, op) for op in inputs if op != "embedding"}
    try_time(timer, times, "bf16", lambda: layer.whole(plain), ())
    try_time(timer, times, "fastest of each", lambda: layer.whole(fastest), ())
    result["layer"] = summary("layer", times)
    result["experts_touched"] = int((torch.diff(ends, prepend=ends.new_zeros(1)) > 0).sum())
    return result


def numbers(text):
    return [int(n) for n in text.split(",") if n]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=numbers, default=[3584])
    parser.add_argument("--decode", type=numbers, default=[])
    parser.add_argument("--context", type=int, default=3650)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--compile", default="prefill", choices=["none", "prefill", "all"])
    parser.add_argument("--json", default="-")
    args = parser.parse_args()
    torch._dynamo.config.recompile_limit = 64
    for_prompts = COMPILED if args.compile != "none" else set()
    for_decode = COMPILED if args.compile == "all" else set()
    weights, timer = Weights(), Timer(args.repeats)
    shapes = {}
    with torch.no_grad():
        for tokens in args.tokens:
            name = f"prefill_{tokens}"
            print(f"{name}: eager, best", file=sys.stderr)
            shapes[name] = measure(Layer(weights, tokens, 0), timer, for_prompts)
        for rows in args.decode:
            name = f"decode_{rows}"
            print(f"{name}: eager, best", file=sys.stderr)
            shapes[name] = measure(Layer(weights, rows, args.context), timer, for_decode)
    out = json.dumps(
        {"hardware": torch.cuda.get_device_name(), "torch": torch.__version__, "command": " ".join(sys.argv),
         "model": MODEL, "geometry": GEOMETRY, "context": args.context, "shapes": shapes}, indent=1)  # fmt: skip
    if args.json == "-":
        print(out)
    else:
        with open(args.json, "w") as file:
            file.write(out + "\n")


if __name__ == "__main__":
    main()
