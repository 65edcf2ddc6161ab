"""Holds a counters page and a socket in node.runtime_dir, as gradwired does, until SIGTERM."""
import argparse
import fcntl
import os
import re
import signal
import socket
import struct
import sys
import time

# Sizes of counters_layout.h, version 3.
HEADER = struct.Struct("<QIIIIIIIIIIiIQQQ32s256s32sQQQQ")
HEADER_BYTES = 448
CAPACITIES = (64, 512, 8192, 512)
SIZES = (1408, 64, 448, 512)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    print("settings:", *options.set, file=sys.stderr, flush=True)
    settings = dict(setting.split("=", 1) for setting in options.set)
    if "fake.fail" in settings:
        sys.exit("fake daemon: told to fail")
    with open(options.config) as file:
        text = file.read()
    folder = re.search(r"runtime_dir: '(.*)'", text)[1]
    name = re.search(r"name: (.*)", text)[1]
    if settings.get("fake.fail_node") == name:
        sys.exit("fake daemon: told to fail")
    if settings.get("fake.mute_node") == name:
        time.sleep(1000)  # neither ready nor gone
    with open(f"{folder}/pid", "w") as file:
        file.write(str(os.getpid()))
    page = os.open(f"{folder}/counters", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(page, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.ftruncate(page, HEADER_BYTES + sum(c * s for c, s in zip(CAPACITIES, SIZES)))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{folder}/gradwired.sock")
    listener.listen()
    started = time.monotonic()
    while time.monotonic() - started < float(settings.get("fake.die_after", "1000")):
        now = time.monotonic_ns()
        header = HEADER.pack(0x31304E5443525747, 3, HEADER_BYTES, *CAPACITIES, *SIZES, os.getpid(), 0, now,
                             time.time_ns(), now, b"0.0.0", name.encode(), b"none", 0, 0, 0, 0)
        os.pwrite(page, header, 0)
        time.sleep(0.1)
    os._exit(9)


if __name__ == "__main__":
    main()
