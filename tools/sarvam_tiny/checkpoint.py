"""safetensors by hand: an 8-byte header length, a JSON header, then the tensors row-major and little-endian."""
import json
import struct

import numpy as np
import torch

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}


def write_safetensors(path, tensors):
    header, offset, chunks = {}, 0, []
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        dtype = next(key for key, value in DTYPES.items() if value == tensor.dtype)
        raw = (tensor.view(torch.int16) if dtype == "BF16" else tensor).numpy().tobytes()
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
        chunks.append(raw)
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for raw in chunks:
            file.write(raw)


def read_safetensors(path):
    """All tensors in fp32."""
    with open(path, "rb") as file:
        data = file.read()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = np.frombuffer(data[8 + size + begin:8 + size + end], np.int16 if entry["dtype"] == "BF16" else np.float32)
        tensor = torch.from_numpy(raw.copy())
        tensor = tensor.view(DTYPES[entry["dtype"]]) if entry["dtype"] == "BF16" else tensor
        tensors[name] = tensor.float().reshape(entry["shape"])
    return tensors
