"""Loads a checkpoint into PyTorch and compares it with the parameters' hash in the results file.

    python3 tests/readers/read_safetensors.py results.db CHECKPOINT.safetensors

Exit code 77: PyTorch is not installed for this Python. Uses the package `safetensors` if it is
installed, else a loader in this file.
"""
import hashlib
import json
import sqlite3
import struct
import sys

try:
    import torch
except ImportError as missing:
    print(f"PyTorch is not installed: {missing}")
    sys.exit(77)


def load(path):
    try:
        from safetensors.torch import load_file
        print("with the package safetensors")
        return load_file(path)
    except ImportError:
        data = open(path, "rb").read()
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + length])
        header.pop("__metadata__", None)
        body = bytearray(data[8 + length:])
        return {name: torch.frombuffer(body, dtype=torch.float32, offset=t["data_offsets"][0],
                                       count=(t["data_offsets"][1] - t["data_offsets"][0]) // 4
                                       ).reshape(t["shape"])
                for name, t in header.items() if t["dtype"] == "F32"}


results, path = sys.argv[1:]
tensors = {name: t for name, t in load(path).items() if not name.startswith("optimizer")}
with open(path, "rb") as f:
    order = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
order.pop("__metadata__", None)
names = sorted(tensors, key=lambda name: order[name]["data_offsets"][0])
digest = hashlib.sha256(b"".join(tensors[n].contiguous().numpy().tobytes() for n in names))
wanted = sqlite3.connect(results).execute("SELECT parameters_sha256 FROM run").fetchone()[0]
assert digest.hexdigest() == wanted, (digest.hexdigest(), wanted)

layers = [n[:-len(".weight")] for n in names if n.endswith(".weight")]
model = torch.nn.ModuleDict({layer: torch.nn.Linear(*reversed(tensors[f"{layer}.weight"].shape))
                             for layer in layers})
model.load_state_dict(tensors)
print(f"{len(names)} tensors loaded: {', '.join(names)}")
