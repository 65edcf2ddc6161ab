"""A naive decoder of docs/wire-format.md, the oracle of the compression tests.

Usage: oracle.py DUMP_PROGRAM WORK_FILE. Runs the program, which writes buckets, their finished segments and what
the library decoded from them; computes geometry and values again from the format's description alone, and
compares bit for bit.
"""
import json
import os
import struct
import subprocess
import sys

MANTISSA = [0x000000, 0x0B95C2, 0x1837F0, 0x25FED7, 0x3504F3, 0x45672A, 0x5744FD, 0x6AC0C7]
NAN = 0x7FC00000
BLOCK = {"raw": 256, "l8": 4096, "sparse_l8": 65536, "sparse_raw": 8192}
seen_modes = set()


def most_bytes(kind, n):
    return {"raw": 4 * n, "l8": 1 + n, "sparse_l8": 2 + n, "sparse_raw": 1 + 4 * n}[kind]


def kind_of(elements, codec, dense_below):
    small = elements < dense_below
    return {
        "none": "raw",
        "l8": "l8",
        "lads": "raw" if small else "sparse_raw",
        "laco": "l8" if small else "sparse_l8",
        "topk": "l8" if small else "sparse_l8",
        "dropping": "raw" if small else "sparse_raw",
    }[codec]


def chunk_begin(n, nodes, c):
    units = (n + 63) // 64
    return min(n, 64 * (c * units // nodes))


def blocks_of_chunk(case, chunk):
    """(kind, elements) of every block of a chunk, in order."""
    layers = [(n, kind_of(n, codec, case["dense_below"])) for n, codec in case["layers"]]
    total = sum(n for n, _ in layers)
    begin = chunk_begin(total, case["nodes"], chunk)
    end = chunk_begin(total, case["nodes"], chunk + 1)
    pieces = []
    at = 0
    for n, kind in layers:
        count = min(at + n, end) - max(at, begin)
        at += n
        if count <= 0:
            continue
        if kind == "raw" and pieces and pieces[-1][0] == "raw":
            pieces[-1][1] += count
        else:
            pieces.append([kind, count])
    blocks = []
    for kind, count in pieces:
        for done in range(0, count, BLOCK[kind]):
            blocks.append((kind, min(BLOCK[kind], count - done)))
    return begin, blocks


def segments_of(case):
    """(chunk, first element, most bytes, blocks) of every segment."""
    segments = []
    for chunk in range(case["nodes"]):
        at, blocks = blocks_of_chunk(case, chunk)
        current = [chunk, at, 0, []]
        for kind, n in blocks:
            size = most_bytes(kind, n)
            if current[2] + size > case["max_message_bytes"]:
                segments.append(current)
                current = [chunk, at, 0, []]
            current[2] += size
            current[3].append((kind, n))
            at += n
        segments.append(current)
    return segments


def l8(code, scale):
    m = code & 127
    if m == 0:
        return NAN if code else 0
    t = min(m - 119 + 8 * scale, 2039)
    if t < 8:
        return 0
    return (code & 128) << 24 | (t >> 3) << 23 | MANTISSA[t & 7]


def bit(data, i):
    return data[i // 8] >> (i % 8) & 1


class Reader:
    def __init__(self, data):
        self.data = data
        self.at = 0

    def take(self, n):
        assert self.at + n <= len(self.data), "message too short"
        part = self.data[self.at:self.at + n]
        self.at += n
        return part


def values(reader, kind, count, scale):
    if kind == "l8":
        return [l8(code, scale) for code in reader.take(count)]
    return list(struct.unpack("<%dI" % count, reader.take(4 * count)))


def unpacked(reader, count, minimum, width, scale):
    data = reader.take((count * (width + 1) + 7) // 8)
    fields = [sum(bit(data, i * (width + 1) + j) << j for j in range(width + 1)) for i in range(count)]
    magnitudes = [minimum + (field & ((1 << width) - 1)) for field in fields]
    assert max(magnitudes) <= 127
    return [l8((field >> width) << 7 | m, scale) for field, m in zip(fields, magnitudes)]


def sparse(reader, kind, n):
    mode = reader.take(1)[0]
    seen_modes.add((kind, mode))
    if mode == 0:
        return [0] * n
    value_kind = "l8" if kind == "sparse_l8" else "raw"
    layout = mode & 15
    packed = value_kind == "l8" and mode >> 4 == 2 and layout != 1
    assert packed or mode >> 4 == (1 if value_kind == "l8" else 0), mode
    assert layout in (1, 2, 3), mode
    scale = reader.take(1)[0] if value_kind == "l8" else 0
    if layout == 1:
        return values(reader, value_kind, n, scale)
    low = reader.take(1)[0] if layout == 3 else 0
    k = 1 + struct.unpack("<H", reader.take(2))[0]
    assert k <= n and low <= 15
    minimum, width = reader.take(2) if packed else (0, 7)
    assert width <= 7
    if layout == 2:
        bits = reader.take((n + 7) // 8)
        positions = [i for i in range(8 * len(bits)) if bit(bits, i)]
    else:
        lows = reader.take((k * low + 7) // 8)
        upper = reader.take((k + ((n - 1) >> low) + 7) // 8)
        ones = [i for i in range(8 * len(upper)) if bit(upper, i)]
        positions = []
        for i, one in enumerate(ones):
            rest = sum(bit(lows, i * low + j) << j for j in range(low))
            positions.append((one - i) << low | rest)
    assert len(positions) == k
    assert positions == sorted(set(positions)) and positions[-1] < n
    out = [0] * n
    decoded = unpacked(reader, k, minimum, width, scale) if packed else values(reader, value_kind, k, scale)
    for position, value in zip(positions, decoded):
        out[position] = value
    return out


def decode(data, blocks):
    reader = Reader(data)
    out = []
    for kind, n in blocks:
        if kind == "raw":
            out += values(reader, "raw", n, 0)
        elif kind == "l8":
            out += values(reader, "l8", n, reader.take(1)[0])
        else:
            out += sparse(reader, kind, n)
    assert reader.at == len(data), "bytes left over"
    return out


def as_float(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def divided(bits, divide_by):
    if divide_by == 1 or bits == 0:
        return bits
    inverse = struct.unpack("<f", struct.pack("<f", 1.0 / divide_by))[0]
    return struct.unpack("<I", struct.pack("<f", as_float(bits) * inverse))[0]


def check(case):
    expected = segments_of(case)
    actual = case["segments"]
    assert len(expected) == len(actual), (case["name"], len(expected), len(actual))
    result = []
    for (chunk, first, most, blocks), segment in zip(expected, actual):
        size = sum(n for _, n in blocks)
        told = (segment["chunk"], segment["first"], segment["max_bytes"], segment["elements"])
        assert (chunk, first, most, size) == told, (case["name"], told)
        result += decode(bytes.fromhex(segment["bytes"]), blocks)
    library = bytes.fromhex(case["result"])
    library = struct.unpack("<%dI" % (len(library) // 4), library)
    assert len(result) == len(library)
    for i, (bits, theirs) in enumerate(zip(result, library)):
        ours = divided(bits, case["divide_by"])
        assert ours == theirs, "%s: element %d is %08x, not %08x" % (case["name"], i, theirs, ours)
    return len(result)


def main():
    program, work_file = sys.argv[1:]
    try:
        subprocess.run([program, work_file], check=True, timeout=60)
        with open(work_file) as f:
            cases = json.load(f)
    finally:
        if os.path.exists(work_file):
            os.remove(work_file)
    elements = sum(check(case) for case in cases)
    wanted = {("sparse_l8", m) for m in (0, 0x11, 0x12, 0x13, 0x22, 0x23)} | {("sparse_raw", m) for m in (0, 1, 2, 3)}
    assert seen_modes == wanted, "modes without a case: %s" % sorted(wanted ^ seen_modes)
    print("%d buckets, %d elements agree" % (len(cases), elements))


if __name__ == "__main__":
    main()
