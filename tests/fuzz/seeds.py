#!/usr/bin/env python3
"""Writes the binary seeds of corpus/ again: seeds.py (the text ones are written by hand)."""

import pathlib
import struct

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"
KEY = bytes(range(0x40, 0x50))


def seed(target: str, name: str, content: bytes) -> None:
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.bin").write_bytes(content)


def frame(document: bytes) -> bytes:
    return struct.pack("<I", len(document)) + document


def header(kind: int, operation: int, reduce_op: int = 0, root: int = 0, hop: int = 0, payload: int = 0,
           flags: int = 0) -> bytes:
    """docs/wire-format.md, "Data messages"; the target puts the checksum right."""
    head = KEY + struct.pack("<IBBBB", 0x31445747, kind, operation, reduce_op, 0)
    head += struct.pack("<QdQQ", 5, 1.0, 1000, 0x1234)
    return head + struct.pack("<IIIIIIIIQ", 1, root, 0, hop, 0, 0, payload, flags, 0)


def messages() -> None:
    for name, head, payload in (
        ("reduce", header(1, 1, 1, payload=400), 400),
        ("allgather", header(2, 4, hop=1, payload=64), 64),
        ("reduce_scatter", header(1, 5, 2, hop=1, payload=64), 64),
        ("grant", header(3, 1), 0),
        ("flush", header(1, 1, 1, payload=400, flags=3), 400),
        ("broadcast", header(4, 2, root=3, payload=4000), 4000),
        ("barrier", header(1, 3), 0),
    ):
        assert len(head) == 96
        seed("message", name, struct.pack("<BI", 1, payload) + head)
    seed("message", "damaged", struct.pack("<BI", 0, 400) + header(1, 1, 1, payload=400))


def frames() -> None:
    documents = [b'{"type":"beat"}', b"x", b"y" * 40]
    seed("framing", "three", struct.pack("<HBB", 100, 3, 2) + b"".join(map(frame, documents)))
    seed("framing", "longer", struct.pack("<HBB", 20, 200, 0) + frame(b"z" * 19) + frame(b"z" * 22))
    seed("framing", "nothing", struct.pack("<HBB", 20, 0, 0) + frame(b"a") + frame(b""))


def blocks() -> None:
    """Kinds of reducer: 0 mixed, 1 none, 2 l8, 3 lads, 4 laco, then exact and shards by data type."""
    # A chunk of the mixed bucket begins with 3000 elements of laco: one sparse block with L8 values.
    seed("decode", "empty_block", bytes([4, 0, 0, 0, 0x00]))
    bitmap = bytearray(375)
    bitmap[0] = 0b101
    seed("decode", "bitmap", bytes([4, 0, 0, 0, 0x12, 120]) + struct.pack("<H", 1) + bytes(bitmap) + b"\x70\xf0")
    seed("decode", "dense", bytes([4, 0, 0, 0, 0x11, 120]) + b"\x70" * 3000)
    low = 9  # positions 3 and 600 of 3000: low bits 3 and 88, upper parts 0 and 1
    bits = 3 | 88 << low
    upper = 1 << 0 | 1 << (1 + 1)
    elias_fano = bits.to_bytes(3, "little") + upper.to_bytes((2 + (2999 >> low) + 7) // 8, "little")
    seed("decode", "elias_fano", bytes([4, 0, 0, 0, 0x13, 120, low]) + struct.pack("<H", 1) + elias_fano + b"\x70\xf0")
    seed("decode", "l8", bytes([2, 0, 0, 0, 120]) + b"\x7f" * 3000)
    seed("decode", "lads_raw", bytes([3, 0, 0, 0, 0x00, 0x00, 0x00]))
    seed("decode", "fp16_gather", bytes([7, 0, 0, 1]) + b"\x00\x3c" * 9344)
    seed("decode", "shard_uint8", bytes([18, 1, 1, 0]) + b"\x05" * 4667)


def rings() -> None:
    submit_all = bytes([2, 1, 0, 1])  # bucket 1, allreduce, average
    seed("rings", "ordinary", bytes([3]) + submit_all + bytes([2, 2, 0, 0]) + bytes([2, 0, 2, 0]) + bytes([6]))
    seed("rings", "broadcast", bytes([1, 2, 1, 1, 0, 1, 6]))
    seed("rings", "damaged", bytes([2, 1, 0, 1, 0, 1, 24, 4]) + b"\xff\xff\xff\xff" + bytes([6]))
    counter = bytes([4, 0, 0, 0]) + struct.pack("<h", 5000)
    seed("rings", "counter", bytes([1]) + submit_all + counter + bytes([6]) + submit_all)
    scribble = bytes([3, 1]) + struct.pack("<I", 4096) + bytes([64]) + bytes(range(64))
    seed("rings", "slot", bytes([2]) + scribble + bytes([4, 1, 0, 0]) + struct.pack("<h", 1) + bytes([6]))
    seed("rings", "gradient", bytes([0, 5, 0, 2]) + struct.pack("<H", 8) + bytes([4]) + b"\x00\x00\xc0\x7f" + submit_all)


def arrivals() -> None:
    seed("arrivals", "untouched", bytes([0, 127, 127]))
    seed("arrivals", "dropped", bytes([1, 4, 132]))
    seed("arrivals", "twice", bytes([3, 7, 133]))
    seed("arrivals", "hop", bytes([0, 3, 128]) + struct.pack("<H", 68) + bytes([1, 1]))
    seed("arrivals", "payload", bytes([2, 9, 129]) + struct.pack("<H", 0) + bytes([3]) + b"\x13\x10\x0f")
    seed("arrivals", "short", bytes([4, 5, 130]) + struct.pack("<H", 17))
    seed("arrivals", "header", bytes([1, 6, 131, 95]))


def states() -> None:
    """docs/state-format.md; the target puts the checksums right."""
    def layer(name: bytes, values: list[float], pieces: list[tuple[int, float]], numbers: tuple = (1.0, 1.7, 0.1, 0.4),
              contents: int = 1):
        head = struct.pack("<4sIQ4dQII", b"GWLA", len(name), len(values), *numbers, 7, len(pieces), contents)
        head += (struct.pack("<fIdd", 0.01, 0, 0.75, 0.01) if contents else b"") + name
        head += b"".join(struct.pack("<Qd", *piece) for piece in pieces)
        array = struct.pack(f"<{len(values)}f", *values) + bytes(4)
        return head + bytes(4) + array * (2 if contents == 3 else 1)

    def section(name: bytes, *layers: bytes) -> bytes:
        return struct.pack("<4sII", b"GWBU", len(name), len(layers)) + name + bytes(4) + b"".join(layers)

    def state(sections: list[bytes], layers: int, version: int = 2) -> bytes:
        payload = b"".join(sections) + b"GWEN" + bytes(4)
        head = struct.pack("<8sIIQQQIIIII", b"GWSTATE\n", 0x0A0B0C0D, version, len(payload), layers, 3, len(sections),
                           2, 1, 4, 0)
        return head + bytes(4) + payload

    one = section(b"b0", layer(b"fc.weight", [1.5] * 100, [(60, 0.1), (40, 0.3)]), layer(b"fc.bias", [0.0, -2.0], []))
    whole = state([one, section(b"b1")], 2)
    seed("state", "whole", bytes([6, 1]) + whole)
    seed("state", "nothing", bytes([255, 1]) + state([], 0))
    seed("state", "unsealed", bytes([63, 0]) + whole)
    seed("state", "cut", bytes([0, 1]) + whole[:300])
    seed("state", "version", bytes([0, 1]) + state([one], 2, 3))
    seed("state", "old", bytes([9, 1]) + state([section(b"b", layer(b"w", [1.0, 2.0], [(2, 0.1)], contents=0))], 1, 1))
    seed("state", "old_contents", bytes([9, 1]) + state([section(b"b", layer(b"w", [1.0], []))], 1, 1))
    both = section(b"b", layer(b"w", [1.0, 2.0], [], contents=3), layer(b"norm", [3.0], [], contents=2))
    seed("state", "momentum", bytes([9, 1]) + state([both], 2))
    seed("state", "contents", bytes([9, 1]) + state([section(b"b", layer(b"w", [1.0], [], contents=4))], 1))
    seed("state", "layers", bytes([9, 1]) + state([one], 3))
    seed("state", "scale", bytes([9, 1]) + state([section(b"b", layer(b"w", [1.0], [], (0.0, 0, 0, 0)))], 1))
    seed("state", "infinite", bytes([9, 1]) + state([section(b"b", layer(b"w", [float("inf")], []))], 1))
    seed("state", "pieces", bytes([9, 1]) + state([section(b"b", layer(b"w", [1.0] * 3, [(2, 0.1), (2, 0.1)]))], 1))
    seed("state", "twice", bytes([9, 1]) + state([section(b"b", layer(b"w", [1.0], []), layer(b"w", [2.0], []))], 2))


if __name__ == "__main__":
    messages()
    frames()
    blocks()
    rings()
    arrivals()
    states()
