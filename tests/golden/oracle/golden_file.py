"""Golden files: safetensors holding F32 tensors only, so that one small reader serves every golden."""
import json
import struct

import numpy as np


def write_golden(path, tensors, metadata):
    """tensors: {name: array}, converted to float32; metadata: {str: str}."""
    header = {"__metadata__": {key: str(value) for key, value in metadata.items()}}
    blobs, offset = [], 0
    for name, array in tensors.items():
        array = np.asarray(array)
        blob = np.ascontiguousarray(array, dtype="<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        file.write(b"".join(blobs))


def read_golden(path):
    """({name: float32 array}, metadata)"""
    with open(path, "rb") as file:
        data = file.read()
    header_bytes, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + header_bytes].decode("utf-8"))
    metadata = header.pop("__metadata__", {})
    body = data[8 + header_bytes:]
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(body[begin:end], dtype="<f4").reshape(entry["shape"]).copy()
    return tensors, metadata
