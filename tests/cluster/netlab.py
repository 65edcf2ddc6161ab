"""A private test network: hosts (network namespaces) on one switch, every link shaped with tc.

    lab = Netlab(4, "1gbit"); lab.prefix(0) + command; lab.address(0); lab.sent_bytes(0); lab.close()

As a command: netlab.py HOSTS RATE -- COMMAND runs COMMAND with NETLAB_PREFIX in its environment (host i is the
namespace ${NETLAB_PREFIX}h<i>, its address 10.77.0.<i+1>) and takes the network down afterwards.
Names hold the process id, so that networks do not meet. Needs root, ip and tc.
"""
import atexit
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys

COUNTER = itertools.count()


def missing():
    """Why there can be no such network here; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if not shutil.which(tool):
            return f"the program {tool} is not installed (package iproute2)"
    name = f"gw{os.getpid()}try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode != 0:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return None


def call(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def bits_per_second(rate):
    match = re.fullmatch(r"(\d+)(k|m|g)bit", rate)
    if not match:
        raise ValueError(f"{rate!r} is not a rate, for example 1gbit or 500mbit")
    return int(match[1]) * {"k": 10**3, "m": 10**6, "g": 10**9}[match[2]]


class Netlab:
    def __init__(self, hosts, rate="none"):
        self.name = f"gw{os.getpid()}x{next(COUNTER)}"
        self.hosts = hosts
        self._made = []
        atexit.register(self.close)
        try:
            self._build(rate)
        except BaseException:
            self.close()
            raise

    def _namespace(self, name):
        call("ip", "netns", "add", name)
        self._made.append(name)
        call("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def _build(self, rate):
        switch = self._namespace(self.name + "sw")
        call("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        call("ip", "-n", switch, "link", "set", "br0", "up")
        for i in range(self.hosts):
            host = self._namespace(self.host(i))
            port = f"p{i}"
            call("ip", "link", "add", "eth0", "netns", host, "type", "veth", "peer", "name", port, "netns", switch)
            call("ip", "-n", host, "addr", "add", f"{self.address(i)}/24", "dev", "eth0")
            call("ip", "-n", host, "link", "set", "eth0", "up")
            call("ip", "-n", switch, "link", "set", port, "master", "br0", "up")
        self.shape(rate)

    def shape(self, rate):
        """Every link to `rate` in both directions; "none" removes the limit."""
        for i in range(self.hosts):
            for namespace, device in ((self.host(i), "eth0"), (self.name + "sw", f"p{i}")):
                prefix = ("tc", "-n", namespace, "qdisc")
                subprocess.run([*prefix, "del", "dev", device, "root"], capture_output=True, check=False)
                if rate != "none":
                    # 2 ms of the rate, at least 64 KiB: a larger burst would let short messages pass unshaped.
                    burst = max(bits_per_second(rate) // 8 // 500, 65536)
                    call(*prefix, "add", "dev", device, "root", "tbf", "rate", rate, "burst", str(burst),
                         "latency", "100ms")

    def host(self, i):
        return f"{self.name}h{i}"

    def address(self, i):
        return f"10.77.0.{i + 1}"

    def prefix(self, i):
        return ["ip", "netns", "exec", self.host(i)]

    def sent_bytes(self, i):
        """Bytes that host i put on its link since it exists."""
        (link,) = json.loads(call("ip", "-n", self.host(i), "-s", "-j", "link", "show", "dev", "eth0"))
        return link["stats64"]["tx"]["bytes"]

    def cut(self, i):
        call("ip", "-n", self.name + "sw", "link", "set", f"p{i}", "down")

    def heal(self, i):
        call("ip", "-n", self.name + "sw", "link", "set", f"p{i}", "up")

    def close(self):
        for name in reversed(self._made):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        self._made.clear()
        atexit.unregister(self.close)


def main():
    if len(sys.argv) < 5 or sys.argv[3] != "--":
        sys.exit(__doc__)
    reason = missing()
    if reason:
        sys.exit(f"netlab: {reason}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    lab = Netlab(int(sys.argv[1]), sys.argv[2])
    try:
        sys.exit(subprocess.run(sys.argv[4:], env=dict(os.environ, NETLAB_PREFIX=lab.name), check=False).returncode)
    finally:
        lab.close()


if __name__ == "__main__":
    main()
