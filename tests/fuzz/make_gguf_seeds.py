#!/usr/bin/env python3
"""Writes the seed files of the GGUF fuzzer to tests/fuzz/gguf_fuzz: small, valid, one feature each."""
import pathlib
import struct

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def value(kind, v):
    if kind == STRING:
        return text(v)
    if kind == ARRAY:
        element, values = v
        return struct.pack("<IQ", element, len(values)) + b"".join(value(element, x) for x in values)
    return struct.pack("<" + CODES[kind], v)


def gguf(entries, tensors, version=3, align=32):
    """tensors: (name, dims innermost first, ggml type, data)"""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries))
    for key, kind, v in entries:
        out += text(key) + struct.pack("<I", kind) + value(kind, v)
    offset = 0
    for name, dims, kind, data in tensors:
        out += text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims)
        out += struct.pack("<IQ", kind, offset)
        offset += -(-len(data) // align) * align
    out += b"\0" * (-len(out) % align)
    for _, _, _, data in tensors:
        out += data + b"\0" * (-len(data) % align)
    return out


def main():
    scalars = [(f"k{kind}", kind, 1) for kind in CODES]
    arrays = [(f"a{kind}", ARRAY, (kind, [1, 0])) for kind in CODES]
    strings = [("general.architecture", STRING, "llama"), ("tokens", ARRAY, (STRING, ["a", "", "bc"]))]
    vector = ("norm", [4], 0, struct.pack("<4f", 1, 2, 3, 4))
    matrix = ("blk.0.w", [32, 2], 8, bytes(68))
    seeds = {
        "empty": gguf([], []),
        "scalars": gguf(scalars, []),
        "arrays": gguf(arrays, []),
        "strings_v2": gguf(strings, [vector], version=2),
        "tensors": gguf(strings, [vector, matrix]),
        "aligned": gguf([("general.alignment", U32, 64)], [matrix, vector], align=64),
    }
    folder = pathlib.Path(__file__).parent / "gguf_fuzz"
    folder.mkdir(exist_ok=True)
    for name, data in seeds.items():
        (folder / f"{name}.gguf").write_bytes(data)


if __name__ == "__main__":
    main()
