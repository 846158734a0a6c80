#!/usr/bin/env python3
"""Writes the seed files of the safetensors fuzzer to tests/fuzz/safetensors_fuzz: small, one feature each."""
import json
import pathlib
import struct

OUT = pathlib.Path(__file__).parent / "safetensors_fuzz"


def write(name, tensors, metadata=None):
    """tensors: (name, dtype, shape, data)."""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for tensor, dtype, shape, payload in tensors:
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(payload)]}
        data += payload
    text = json.dumps(header, separators=(",", ":")).encode()
    (OUT / name).write_bytes(struct.pack("<Q", len(text)) + text + data)


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


OUT.mkdir(exist_ok=True)
write("plain", [("a", "F32", [2, 2], floats(1, 2, 3, 4)), ("b", "BF16", [3], bytes(6)), ("c", "F16", [1], bytes(2))],
      {"format": "pt"})
fp8 = bytes(range(24))
write("per_tensor", [("w", "F8_E4M3", [4, 6], fp8), ("w_scale", "F32", [], floats(0.5))])
write("per_row", [("w", "F8_E5M2", [4, 6], fp8), ("w_scale", "F32", [4, 1], floats(1, 2, 3, 4))])
write("blocks", [("w", "F8_E4M3", [4, 6], fp8), ("w_scale_inv", "F32", [2, 2], floats(1, 2, 3, 4))])
write("stack", [("w", "F8_E4M3", [2, 3, 4], fp8), ("w_scale", "BF16", [2], b"\x80\x3f\x00\x40")])
write("passed_over", [("a", "F32", [1], floats(1)), ("x.rotary_emb.inv_freq", "F64", [1], bytes(8)),
                      ("x.input_scale", "F32", [], floats(1))])
write("ints", [("a", "I64", [1], bytes(8))])
