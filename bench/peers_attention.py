"""Attention of bench/peers.py: FlashInfer through build-call/flashinfer_peer.so, and PyTorch's scaled_dot_product_attention."""

import ctypes
import functools
import itertools

import torch
import torch.nn.functional as F
from common import ROOT
from torch.nn.attention import SDPBackend, sdpa_kernel

Q_HEADS, KV_HEADS, DIM, PAGE = 64, 4, 64, 16
BF16, F8 = torch.bfloat16, torch.float8_e4m3fn
KINDS = {"bf16": BF16, "f8": F8}
PROMPTS = {"3584": ([3584], [3584]), "512_of_3584": ([512], [3584]), "8192": ([8192], [8192])}  # new tokens, context
POINTER, INT = ctypes.c_void_p, ctypes.c_int32


class Batch(ctypes.Structure):  # the structures of bench/flashinfer/peer.h
    _fields_ = [(name, POINTER) for name in
                ("qo_indptr_host", "kv_indptr_host", "kv_len_host", "qo_indptr", "kv_indptr", "last_page_len")]  # fmt: skip
    _fields_ += [(name, INT) for name in ("rows", "page_size", "q_heads", "kv_heads", "head_major")]
    _fields_ += [("scale", ctypes.c_float)]


class Tensors(ctypes.Structure):
    _fields_ = [(name, POINTER) for name in ("q", "q_rope", "k", "v", "table", "out")]


class Workspace(ctypes.Structure):
    _fields_ = [("floats", POINTER), ("float_bytes", ctypes.c_int64), ("ints", POINTER), ("pinned_ints", POINTER),
                ("int_bytes", ctypes.c_int64)]  # fmt: skip


class FlashInfer:
    def __init__(self):
        self.library = ctypes.CDLL(str(ROOT / "build-call/flashinfer_peer.so"))
        self.library.peer_error.restype = ctypes.c_char_p
        self.floats = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        self.kept = []  # what the plans point to

    def plan(self, name, q_lens, kv_lens, extra=(), page=PAGE, q_heads=Q_HEADS, kv_heads=KV_HEADS, scale=0.125, head_major=False):
        """run(q, k, v, out, table=None, q_rope=None) of kernels peer_<name>; `extra` goes to the plan."""

        def sums(lens):
            return torch.tensor([0, *itertools.accumulate(lens)], dtype=torch.int32)

        qo, kvi = sums(q_lens), sums([-(-n // page) for n in kv_lens])
        lens = torch.tensor(kv_lens, dtype=torch.int32)
        last = ((lens - 1) % page + 1).cuda()
        device_qo, device_kvi = qo.cuda(), kvi.cuda()
        ints = torch.empty(16 << 20, dtype=torch.uint8, device="cuda")
        pinned = torch.empty(16 << 20, dtype=torch.uint8, pin_memory=True)
        batch = Batch(qo.data_ptr(), kvi.data_ptr(), lens.data_ptr(), device_qo.data_ptr(), device_kvi.data_ptr(),
                      last.data_ptr(), len(q_lens), page, q_heads, kv_heads, head_major, scale)  # fmt: skip
        workspace = Workspace(self.floats.data_ptr(), self.floats.numel(), ints.data_ptr(), pinned.data_ptr(), ints.numel())
        self.kept.append((qo, kvi, lens, last, device_qo, device_kvi, ints, pinned))
        family, _, kind = name.partition("_")
        suffix = f"_{kind}" if kind else ""
        plan, run = (getattr(self.library, f"peer_{family}_{verb}{suffix}") for verb in ("plan", "run"))
        plan.restype, run.argtypes = POINTER, [POINTER, POINTER, POINTER]
        torch.cuda.synchronize()
        handle = plan(ctypes.byref(batch), ctypes.byref(workspace), *(INT(value) for value in extra))
        if not handle:
            raise RuntimeError(f"plan of {name}: {self.library.peer_error().decode()}")

        def call(q, k, v, out, table=None, q_rope=None):
            pointers = [t.data_ptr() if t is not None else None for t in (q, q_rope, k, v, table, out)]
            tensors = Tensors(*pointers)
            if run(handle, ctypes.addressof(tensors), torch.cuda.current_stream().cuda_stream):
                raise RuntimeError(f"{name}: {self.library.peer_error().decode()}")

        return call


def attend(q, k, v, scale, group):
    """Plain causal attention, aligned at the end: q (T, heads, d), k and v (S, kv heads, d), in chunks of 16 heads."""
    new, context = q.shape[0], k.shape[0]
    hidden = torch.arange(context, device="cuda")[None] > torch.arange(context - new, context, device="cuda")[:, None]
    out = torch.empty(new, q.shape[1], v.shape[2], device="cuda")
    for first in range(0, q.shape[1], 16):
        heads = torch.arange(first, first + 16, device="cuda")
        score = torch.einsum("thd,shd->hts", q[:, heads].float(), k[:, heads // group].float()) * scale
        score.masked_fill_(hidden, float("-inf"))
        out[:, heads] = torch.einsum("hts,shd->thd", score.softmax(-1), v[:, heads // group].float())
    return out


def random_pages(count, heads, dim, dtype):
    """Keys or values of `count` pages, at random, as one flat array."""
    pages = torch.empty(count * PAGE * heads * dim, device="cuda", dtype=dtype)
    for part in pages.split(1 << 28):
        part.copy_(torch.randn(part.numel(), device="cuda", dtype=BF16))
    return pages


def rows_of(pages, table, head_major, heads=KV_HEADS, dim=DIM):
    """(tokens, heads, dim) of the pages in the table."""
    if head_major:
        return pages.view(-1, heads, PAGE, dim)[table.long()].transpose(1, 2).reshape(-1, heads, dim)
    return pages.view(-1, PAGE, heads, dim)[table.long()].reshape(-1, heads, dim)


def decode(bench):
    context, in_row = 3650, -(-3650 // PAGE)
    peer = FlashInfer()

    def one(kind, rows, head_major):
        sets = max(2, 64 // rows)  # as in ours: more than the second-level cache holds
        k, v = (random_pages(rows * in_row * sets, KV_HEADS, DIM, KINDS[kind]) for _ in range(2))
        tables = torch.randperm(rows * in_row * sets, device="cuda").int().view(sets, rows * in_row)
        q = torch.randn(rows, Q_HEADS, DIM, device="cuda", dtype=BF16)
        out = torch.full_like(q, float("nan"))
        run = peer.plan(f"fa2_{kind}", [1] * rows, [context] * rows, extra=(0,), head_major=head_major)
        for i in (0, sets - 1):
            run(q, k, v, out, tables[i])
            for row in {0, rows // 2, rows - 1}:
                table = tables[i, row * in_row : (row + 1) * in_row]
                keys, values = (rows_of(pages, table, head_major)[:context] for pages in (k, v))
                bench.check("decode", out[row : row + 1], attend(q[row : row + 1], keys, values, 0.125, 16), 0.01)
            out.fill_(float("nan"))
        us = bench.alone_us(lambda: run(q, k, v, out, tables[0]))
        bench.record(f"decode_{rows}_{kind}", "fa2", us, bench.chained_us(lambda i: run(q, k, v, out, tables[i % sets]), 64))

    for kind in KINDS:
        for rows in (1, 8, 32, 64):
            for head_major in (True, False):  # FlashInfer takes pages in both orders: its faster one counts
                bench.attempt(f"fa2 decode {rows} {kind}", functools.partial(one, kind, rows, head_major))


def time_prompt(bench, case, peer, run, count=8):
    bench.record(case, peer, bench.alone_us(run), bench.chained_us(lambda _: run(), count, 4))


def sdpa(bench, case, backend, q, k, v, want, scale):
    """q (batch, heads, T, d). Of heads that share keys the keys are repeated where the backend does not take them shared."""
    from torch.nn.attention.bias import causal_lower_right

    if backend == SDPBackend.CUDNN_ATTENTION and q.shape[2] != k.shape[2]:
        raise ValueError("PyTorch has no mask for cuDNN that is aligned at the end")
    mask = {"is_causal": True} if q.shape[2] == k.shape[2] else {"attn_mask": causal_lower_right(q.shape[2], k.shape[2])}
    name = {SDPBackend.FLASH_ATTENTION: "sdpa_flash", SDPBackend.CUDNN_ATTENTION: "sdpa_cudnn"}[backend]

    def with_keys(k, v, **options):
        def run():
            return F.scaled_dot_product_attention(q, k, v, scale=scale, **mask, **options)

        with sdpa_kernel(backend):
            out = run()
            bench.check(name, out.transpose(1, 2).reshape(want.shape), want, 0.01)
            time_prompt(bench, case, name, run)

    group = q.shape[1] // k.shape[1]
    if group == 1:
        return with_keys(k, v)
    try:
        with_keys(k, v, enable_gqa=True)
    except RuntimeError:
        with_keys(k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))


def prefill(bench):
    peer = FlashInfer()

    def paged(name, label, case, new, contexts, kind, q, k, v, want, head_major):
        in_row = [-(-n // PAGE) for n in contexts]
        order = torch.randperm(sum(in_row), device="cuda")
        pools = []
        for rows in (k, v):  # every prompt's keys in whole pages, pages at random places
            padded = torch.cat([F.pad(r.float(), (0, 0, 0, 0, 0, -r.shape[0] % PAGE)) for r in rows]).view(-1, PAGE, KV_HEADS, DIM)
            pool = torch.empty_like(padded)
            pool[order] = padded
            pools.append((pool.transpose(1, 2) if head_major else pool).contiguous().to(KINDS[kind]))
        table, out = order.int(), torch.full_like(q, float("nan"))
        run = peer.plan(name, new, contexts, extra=(1,) if name.startswith("fa2") else (1, DIM, DIM), head_major=head_major)
        run(q, *pools, out, table)
        bench.check(label, out, want, 0.01)
        time_prompt(bench, case, label, lambda: run(q, *pools, out, table))

    def from_rows(case, new, contexts, q, k, v, want):
        out, keys, values = torch.full_like(q, float("nan")), torch.cat(k), torch.cat(v)
        run = peer.plan("fa3", new, contexts, extra=(0, DIM, DIM), page=1)
        run(q, keys, values, out)
        bench.check("fa3_rows", out, want, 0.01)
        time_prompt(bench, case, "fa3_rows", lambda: run(q, keys, values, out))

    def one(name, new, contexts, kind):
        case = f"prefill_{name}_{kind}"
        q = torch.randn(sum(new), Q_HEADS, DIM, device="cuda", dtype=BF16)
        k, v = ([torch.randn(n, KV_HEADS, DIM, device="cuda").to(KINDS[kind]).to(BF16) for n in contexts] for _ in range(2))
        want = torch.cat([attend(*row, 0.125, 16) for row in zip(q.split(new), k, v)])
        data = (q, k, v, want)
        for order in (True, False):
            bench.attempt(f"fa2 {case}", lambda: paged(f"fa2_{kind}", "fa2", case, new, contexts, kind, *data, order))
        if kind == "f8":
            return  # the others take no BF16 queries with FP8 keys
        for order in (True, False):
            bench.attempt(f"fa3 {case}", lambda: paged("fa3", "fa3", case, new, contexts, kind, *data, order))
        bench.attempt(f"fa3_rows {case}", lambda: from_rows(case, new, contexts, *data))
        batch = [torch.stack(list(x)).transpose(1, 2).contiguous() for x in (q.split(new), k, v)]
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            bench.attempt(f"{backend} {case}", lambda: sdpa(bench, case, backend, *batch, want, 0.125))

    for name, (new, contexts) in (PROMPTS | {"16x896": ([896] * 16, [896] * 16)}).items():
        for kind in KINDS:
            if kind == "bf16" or contexts == [3584]:
                bench.attempt(name, functools.partial(one, name, new, contexts, kind))


def mla(bench):
    peer, heads, latent, rope = FlashInfer(), 64, 512, 64
    context, in_row = 3650, -(-3650 // PAGE)

    def latents(kind, rows):
        pages = random_pages(rows * in_row, 1, latent, KINDS[kind])
        rope_pages = random_pages(rows * in_row, 1, rope, KINDS[kind])
        table = torch.randperm(rows * in_row, device="cuda").int()
        q = torch.randn(rows, heads, latent, device="cuda", dtype=BF16)
        q_rope = torch.randn(rows, heads, rope, device="cuda", dtype=BF16)
        out = torch.full_like(q, float("nan"))
        run = peer.plan(f"mla_{kind}", [1] * rows, [context] * rows, q_heads=heads, kv_heads=1, scale=0.07)

        def call():
            run(q, pages, rope_pages, out, table, q_rope)

        call()
        for row in {0, rows // 2, rows - 1}:
            places = table[row * in_row : (row + 1) * in_row]
            values = rows_of(pages, places, False, 1, latent)[:context].float()
            keys = torch.cat((values, rows_of(rope_pages, places, False, 1, rope)[:context].float()), -1)
            both = torch.cat((q[row : row + 1], q_rope[row : row + 1]), -1)
            bench.check("mla", out[row : row + 1], attend(both, keys, values, 0.07, heads), 0.01)
        bench.record(f"mla_decode_{rows}_{kind}", "fa3", bench.alone_us(call))

    def expanded(name, new, contexts):
        case, scale = f"mla_prefill_{name}", 192**-0.5
        q = torch.randn(sum(new), heads, 192, device="cuda", dtype=BF16)
        k, v = (torch.randn(sum(contexts), heads, dim, device="cuda", dtype=BF16) for dim in (192, 128))
        split = (q.split(new), k.split(contexts), v.split(contexts))
        want = torch.cat([attend(*row, scale, 1) for row in zip(*split)])

        def fa3():
            out = torch.full((sum(new), heads, 128), float("nan"), device="cuda", dtype=BF16)
            run = peer.plan("fa3", new, contexts, extra=(0, 192, 128), page=1, kv_heads=heads, scale=scale)
            run(q, k, v, out)
            bench.check("fa3", out, want, 0.01)
            time_prompt(bench, case, "fa3", lambda: run(q, k, v, out), 4)

        bench.attempt(f"fa3 {case}", fa3)
        batch = [torch.stack(list(x)).transpose(1, 2).contiguous() for x in split]
        bench.attempt(f"sdpa_cudnn {case}", lambda: sdpa(bench, case, SDPBackend.CUDNN_ATTENTION, *batch, want, scale))

    for kind in KINDS:
        for rows in (1, 8, 32, 64):
            bench.attempt(f"fa3 latents {rows} {kind}", functools.partial(latents, kind, rows))
    for name, (new, contexts) in (PROMPTS | {"4x896": ([896] * 4, [896] * 4)}).items():
        bench.attempt(name, functools.partial(expanded, name, new, contexts))
