"""Matrix products of bench/peers.py in FP8 with scales a row: the experts by a Triton kernel that is tuned here and by CUTLASS
(torch._scaled_grouped_mm), dense linears by torch._scaled_mm. The Triton kernel is the usual one of serving engines: rows
sorted by expert and padded to tiles, a tile of rows and columns a block."""

import itertools
import os
import random
import subprocess
import sys

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

HIDDEN, FFN, EXPERTS, TOP_K, SHARED = 4096, 1024, 128, 6, 128
BF16, F8 = torch.bfloat16, torch.float8_e4m3fn
SHARED_MEMORY = 220_000


@triton.jit(do_not_specialize=["num_slots"])
def expert_gemm(
    x, w, out, x_scale, w_scale, slots, tile_expert, num_slots,
    N: tl.constexpr, K: tl.constexpr, TOP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """out[slot] = x[slot // TOP] times w of the tile's expert, transposed. A tile's slots beyond num_slots are padding."""
    columns: tl.constexpr = N // BN
    block = tl.program_id(0)
    tiles = tl.num_programs(0) // columns
    first = block // (GROUP * columns) * GROUP  # GROUP tiles of rows share the columns' weights in the second-level cache
    height = tl.minimum(tiles - first, GROUP)
    inside = block % (GROUP * columns)
    tile = first + inside % height
    col = inside // height * BN + tl.arange(0, BN)
    slot = tl.load(slots + tile * BM + tl.arange(0, BM))
    real = slot < num_slots
    row = tl.where(real, slot // TOP, 0)
    expert = tl.load(tile_expert + tile).to(tl.int64)
    k = tl.arange(0, BK)
    x_at = x + row[:, None].to(tl.int64) * K + k[None, :]
    w_at = w + expert * N * K + col[None, :] * K + k[:, None]
    sums = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        sums = tl.dot(tl.load(x_at, mask=real[:, None], other=0.0), tl.load(w_at), sums)
        x_at += BK
        w_at += BK
    sums *= tl.load(x_scale + row)[:, None] * tl.load(w_scale + expert * N + col)[None, :]
    tl.store(out + slot[:, None].to(tl.int64) * N + col[None, :], sums.to(tl.bfloat16), mask=real[:, None])


@triton.jit
def swiglu_quantize(gate_up, out, scales, FFN_: tl.constexpr):
    """A row of silu(gate) * up in E4M3 with one scale."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, FFN_)
    gate = tl.load(gate_up + row * 2 * FFN_ + at).to(tl.float32)
    up = tl.load(gate_up + row * 2 * FFN_ + FFN_ + at).to(tl.float32)
    h = gate / (1 + tl.exp(-gate)) * up
    scale = tl.maximum(tl.max(tl.abs(h), 0), 1e-20) / 448
    tl.store(out + row * FFN_ + at, (h / scale).to(tl.float8e4nv))
    tl.store(scales + row, scale)


def configs(prompt):
    """(BM, BN, BK, warps, stages)"""
    sides = ((64, 128), (128, 256), (64, 128)) if prompt else ((16,), (64, 128, 256), (128, 256))
    for bm, bn, bk, warps, stages in itertools.product(*sides, (4, 8), (3, 4) if prompt else (3, 4, 5)):
        spills = bm * bn // warps > 4096 or (bn == 64 and warps == 8)  # or leaves warps without work
        if not spills and (bm + bn) * bk * stages <= SHARED_MEMORY:
            yield bm, bn, bk, warps, stages


def launch(config, x, w, out, x_scale, w_scale, tiles, num_slots, top):
    bm, bn, bk, warps, stages = config
    n, k = w.shape[1:]
    grid = (tiles[1].numel() * (n // bn),)
    expert_gemm[grid](x, w, out, x_scale, w_scale, *tiles, num_slots, n, k, top, bm, bn, bk, 16, num_warps=warps, num_stages=stages)


def kernel_variants():
    """(config, top, (N, K)) of every kernel that is tried."""
    for prompt in (True, False):
        for config in configs(prompt):
            yield config, TOP_K if prompt else TOP_K + 1, (2 * FFN, HIDDEN)
            yield config, 1, (HIDDEN, FFN)


def compile_share(index, count):
    """Compiles every count-th kernel into Triton's cache, by a launch of one tile."""
    x = torch.zeros(16, HIDDEN, device="cuda").to(F8)
    scale, out = torch.ones(HIDDEN, device="cuda"), torch.empty(128, HIDDEN, device="cuda", dtype=BF16)
    tiles = (torch.ones(128, dtype=torch.int32, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda"))
    weights = {shape: torch.zeros(1, *shape, device="cuda").to(F8) for shape in ((2 * FFN, HIDDEN), (HIDDEN, FFN))}
    for config, top, shape in itertools.islice(kernel_variants(), index, None, count):
        try:
            launch(config, x, weights[shape], out, scale, scale, tiles, 1, top)
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001: this tile is then left out
            print(f"  {config}: {str(error)[:100]}", file=sys.stderr)


def compile_all():
    """On all cores: one after the other they take minutes."""
    count = max(1, min(14, (os.cpu_count() or 2) - 1))
    code = "import sys; sys.path.insert(0, sys.argv[1]); import peers_experts as p; p.compile_share(int(sys.argv[2]), int(sys.argv[3]))"
    folder = os.path.dirname(os.path.abspath(__file__))
    shares = [subprocess.Popen([sys.executable, "-c", code, folder, str(i), str(count)]) for i in range(count)]
    for share in shares:
        try:
            share.wait(90)
        except subprocess.TimeoutExpired:
            share.kill()


class Routing:
    """Experts of tokens at random, the shared one as expert 128 where asked, slots sorted by expert."""

    def __init__(self, tokens, shared, touched=None):
        for _ in range(3000):  # as many experts as in our run
            chosen = [random.sample(range(EXPERTS), TOP_K) + [SHARED] * shared for _ in range(tokens)]
            self.touched = len({expert for row in chosen for expert in row})
            if touched is None or self.touched == touched:
                break
        self.top, self.num_slots = TOP_K + shared, tokens * (TOP_K + shared)
        flat = torch.tensor(chosen, device="cuda").flatten()
        self.order = flat.argsort(stable=True)
        self.counts = torch.bincount(flat, minlength=EXPERTS + shared)
        self.sorted_experts = flat[self.order]
        self.ends = self.counts.cumsum(0).int()
        self.token = self.order // self.top

    def tiles(self, bm):
        """(slots padded to tiles of bm, expert of each tile)"""
        padded = (self.counts + bm - 1) // bm * bm
        start, first = padded.cumsum(0) - padded, self.counts.cumsum(0) - self.counts
        slots = torch.full((int(padded.sum()),), self.num_slots, dtype=torch.int32, device="cuda")
        place = torch.arange(self.num_slots, device="cuda") - first[self.sorted_experts] + start[self.sorted_experts]
        slots[place] = self.order.int()
        expert = torch.arange(len(padded), device="cuda").repeat_interleave(padded // bm).int()
        return slots, expert


def random_f8(*shape):
    out = torch.empty(shape, device="cuda", dtype=F8)
    for part in out if len(shape) == 3 else [out]:
        part.copy_(torch.randn(part.shape, device="cuda", dtype=BF16))
    return out


class Weights:
    def __init__(self):
        self.gate_up, self.down = random_f8(EXPERTS + 1, 2 * FFN, HIDDEN), random_f8(EXPERTS + 1, HIDDEN, FFN)
        self.gate_up_scale = torch.rand(EXPERTS + 1, 2 * FFN, device="cuda") * 0.02 + 0.01
        self.down_scale = torch.rand(EXPERTS + 1, HIDDEN, device="cuda") * 0.02 + 0.01


def grouped(x, x_scale, w, w_scale, routing):
    """Plain PyTorch, rows in sorted order: float of x (slots, K) times each expert's weights."""
    out = torch.empty(routing.num_slots, w.shape[1], device="cuda")
    end = 0
    for expert, count in enumerate(routing.counts.tolist()):
        rows = slice(end, end + count)
        end += count
        if count:
            out[rows] = (x[rows].float() @ w[expert].float().t()) * x_scale[rows, None] * w_scale[expert]
    return out


class Case:
    """One routing's inputs, and what plain PyTorch makes of them; h is what the down projection reads."""

    def __init__(self, weights, tokens, shared, touched=None, checked=True):
        self.w, self.routing = weights, Routing(tokens, shared, touched)
        r = self.routing
        self.x, self.x_scale = random_f8(tokens, HIDDEN), torch.rand(tokens, device="cuda") + 0.5
        self.gate_up = torch.empty(r.num_slots, 2 * FFN, device="cuda", dtype=BF16)
        self.h, self.h_scale = torch.empty(r.num_slots, FFN, device="cuda", dtype=F8), torch.empty(r.num_slots, device="cuda")
        self.out = torch.empty(r.num_slots, HIDDEN, device="cuda", dtype=BF16)
        self.sorted_x, self.sorted_scale = self.x[r.token], self.x_scale[r.token]
        if checked:
            args = (weights.gate_up, weights.gate_up_scale, r)
            self.want_gate_up = grouped(self.sorted_x, self.sorted_scale, *args)
            gate, up = self.want_gate_up.chunk(2, -1)
            h = F.silu(gate) * up
            scale = h.abs().amax(-1, keepdim=True) / 448
            self.want = grouped((h / scale).to(F8), scale[:, 0], weights.down, weights.down_scale, r)
        self.fill()

    def fill(self):
        for poisoned in (self.gate_up, self.out):
            poisoned.fill_(float("nan"))

    def swiglu(self):
        swiglu_quantize[(self.routing.num_slots,)](self.gate_up, self.h, self.h_scale, FFN, num_warps=4)

    def triton_gate_up(self, config, tiles):
        r, w = self.routing, self.w
        launch(config, self.x, w.gate_up, self.gate_up, self.x_scale, w.gate_up_scale, tiles, r.num_slots, r.top)

    def triton_down(self, config, tiles):
        launch(config, self.h, self.w.down, self.out, self.h_scale, self.w.down_scale, tiles, self.routing.num_slots, 1)

    def cutlass(self, x, x_scale, w, w_scale):
        n = self.routing.counts.numel()  # without the shared expert there is one less
        return torch._scaled_grouped_mm(
            x, w[:n].transpose(1, 2), x_scale, w_scale[:n], offs=self.routing.ends, out_dtype=BF16, use_fast_accum=True
        )

    def cutlass_gate_up(self):
        return self.cutlass(self.sorted_x, self.sorted_scale, self.w.gate_up, self.w.gate_up_scale)

    def cutlass_down(self):
        return self.cutlass(self.h, self.h_scale, self.w.down, self.w.down_scale)


def tune(bench, case, tokens):
    """The fastest tiles of each of the two products."""
    best, tiles = {}, {}
    prompt = tokens > 128
    for config in configs(prompt):
        bm = config[0]
        if bm not in tiles:
            tiles[bm] = case.routing.tiles(bm)
        for name in ("gate_up", "down"):
            call = getattr(case, f"triton_{name}")
            try:
                us = bench.cold_us(lambda: call(config, tiles[bm]), 7)
            except Exception as error:  # noqa: BLE001: tiles that do not fit
                print(f"  {config}: {str(error)[:80]}", file=sys.stderr)
                continue
            if name not in best or us < best[name][0]:
                best[name] = (us, config)
    print(f"  triton {tokens} tokens: {best}", file=sys.stderr)
    bench.metrics[f"triton_tiles_tried_{'prompt' if prompt else 'decode'}"] = len(list(configs(prompt)))
    return best["gate_up"][1], best["down"][1]


def both_triton(case, chosen, tiles):
    case.triton_gate_up(chosen[0], tiles[0])
    case.swiglu()
    case.triton_down(chosen[1], tiles[1])


def triton_experts(bench, case, more, tokens):
    order = case.routing.order
    case.triton_gate_up(next(configs(tokens > 128)), case.routing.tiles(next(configs(tokens > 128))[0]))
    case.swiglu()  # h for the products that are timed alone
    chosen = tune(bench, case, tokens)
    tiles = [case.routing.tiles(config[0]) for config in chosen]
    case.fill()
    both_triton(case, chosen, tiles)
    bench.check("triton gate_up", case.gate_up[order], case.want_gate_up, 0.02)
    bench.check("triton", case.out[order], case.want, 0.04)
    bench.record(f"gate_up_{tokens}", "triton", bench.alone_us(lambda: case.triton_gate_up(chosen[0], tiles[0])))
    bench.record(f"down_{tokens}", "triton", bench.alone_us(lambda: case.triton_down(chosen[1], tiles[1])))
    both = bench.alone_us(lambda: both_triton(case, chosen, tiles))
    chained = None
    if more:
        chain = [(c, chosen, [c.routing.tiles(config[0]) for config in chosen]) for c in more]
        chained = bench.chained_us(lambda i: both_triton(*chain[i]), len(chain))
    bench.record(f"experts_{tokens}", "triton", both, chained)


def both_cutlass(case):
    case.gate_up = case.cutlass_gate_up()
    case.swiglu()
    case.out = case.cutlass_down()


def cutlass_experts(bench, case, more, tokens):
    both_cutlass(case)  # gate_up and out are sorted by expert here
    bench.check("cutlass gate_up", case.gate_up, case.want_gate_up, 0.02)
    bench.check("cutlass", case.out, case.want, 0.04)  # E4M3 of h may round the other way
    bench.record(f"gate_up_{tokens}", "cutlass", bench.alone_us(case.cutlass_gate_up))
    bench.record(f"down_{tokens}", "cutlass", bench.alone_us(case.cutlass_down))
    both = bench.alone_us(lambda: both_cutlass(case))
    chained = bench.chained_us(lambda i: both_cutlass(more[i]), len(more)) if more else None
    bench.record(f"experts_{tokens}", "cutlass", both, chained)


def experts(bench):
    compile_all()
    weights = Weights()
    for tokens in (3584, 64, 32, 8, 1):
        decode = tokens <= 64
        touched = bench.ours.get(f"touched_{tokens}", [None])[0]
        random.seed(tokens)
        case = Case(weights, tokens, decode, touched)
        bench.metrics[f"experts_touched_peers_{tokens}"] = case.routing.touched
        more = [Case(weights, tokens, True, checked=False) for _ in range(16)] if decode else []
        bench.attempt(f"triton {tokens}", lambda: triton_experts(bench, case, more, tokens))
        bench.attempt(f"cutlass {tokens}", lambda: cutlass_experts(bench, case, more, tokens))
        if not decode:  # the same products against ours that reads one scale a row, not one of 128 columns
            for peer in ("triton", "cutlass"):
                if f"down_{tokens}_{peer}_us" in bench.metrics:
                    bench.metrics[f"down_of_rows_{tokens}_{peer}_us"] = bench.metrics[f"down_{tokens}_{peer}_us"]


def dense(bench):
    def product(name, out_features):
        x, w = random_f8(3584, HIDDEN), random_f8(out_features, HIDDEN)
        x_scale = torch.rand(3584, 1, device="cuda") * 0.02 + 0.01
        w_scale = torch.rand(1, out_features, device="cuda") * 0.02 + 0.01
        want = (x.float() @ w.float().t()) * x_scale * w_scale

        def run():
            return torch._scaled_mm(x, w.t(), scale_a=x_scale, scale_b=w_scale, out_dtype=BF16, use_fast_accum=True)

        bench.check(name, run(), want, 0.02)
        bench.record(name, "torch", bench.alone_us(run, 11))

    def bf16():
        x = torch.randn(3584, HIDDEN, device="cuda", dtype=BF16)
        w = torch.randn(4608, HIDDEN, device="cuda", dtype=BF16)
        bench.check("bf16", F.linear(x, w), x.float() @ w.float().t(), 0.01)
        bench.record("dense_qkv_bf16", "torch", bench.alone_us(lambda: F.linear(x, w), 11))

    bench.attempt("dense_qkv", lambda: product("dense_qkv", 4608))
    bench.attempt("dense_o", lambda: product("dense_o", 4096))
    bench.attempt("dense_qkv_bf16", bf16)
