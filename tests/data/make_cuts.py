#!/usr/bin/python3
"""Cuts the test data of this directory out of the full arrays that README.md describes.

    make_cuts.py GLOVE SVTR_Q SVTR_K SVTR_V OUT

GLOVE is (n >= 8192, 100); SVTR_{Q,K,V} are (layer, head, position, dim), dim 15. All are C-order
little-endian float32 .npy files. Only the standard library is used.
"""
import array
import ast
import hashlib
import pathlib
import struct
import sys


def read_npy(path):
    data = pathlib.Path(path).read_bytes()
    assert data[:8] == b"\x93NUMPY\x01\x00", path
    size = struct.unpack("<H", data[8:10])[0]
    header = ast.literal_eval(data[10 : 10 + size].decode("latin1"))
    assert header["descr"] == "<f4" and not header["fortran_order"], path
    return header["shape"], array.array("f", data[10 + size :])


def write_npy(path, shape, values, code):
    """code: 'f' for float32, 'e' for float16."""
    dtype = {"f": "<f4", "e": "<f2"}[code]
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    body = struct.pack(f"<{len(values)}{code}", *values)
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + body)


def cut_glove(source, out):
    (_, dim), rows = read_npy(source)
    n = 4096
    keys = [x / 10**0.25 for x in rows[: n * dim]]
    write_npy(out / "glove_keys.npy", (n, 1, dim), keys, "f")
    write_npy(out / "glove_values.npy", (n, 1, dim), rows[n * dim : 2 * n * dim], "f")
    queries = [x for i in range(0, n, 16) for x in keys[i * dim : (i + 1) * dim]]
    write_npy(out / "glove_queries_f16.npy", (n // 16, 1, dim), queries, "e")


def cut_svtr(source, out, name):
    (_, heads, length, dim), values = read_npy(source)
    layer, keep, n = 1, 4, 2048
    cut = array.array("f")
    for position in range(n):
        for head in range(keep):
            start = ((layer * heads + head) * length + position) * dim
            cut.extend(values[start : start + dim])
    write_npy(out / f"ocr_{name}.npy", (n, keep, dim), cut, "f")


def main(glove, svtr_q, svtr_k, svtr_v, out):
    out = pathlib.Path(out)
    cut_glove(glove, out)
    for source, name in ((svtr_q, "queries"), (svtr_k, "keys"), (svtr_v, "values")):
        cut_svtr(source, out, name)
    files = sorted(out.glob("*.npy"))
    sums = [f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in files]
    (out / "SHA256SUMS").write_text("".join(sums))


if __name__ == "__main__":
    main(*sys.argv[1:])
