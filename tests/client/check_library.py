"""Checks libgradwire.so: needed libraries, soname, and exported symbols against the header."""
import re
import subprocess
import sys


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    library, header = sys.argv[1:3]
    dynamic = run("readelf", "-d", "--wide", library)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    allowed = re.compile(r"libc\.so\.6|libm\.so\.6|ld-linux.*")
    problems = [f"needs {name}" for name in needed if not allowed.fullmatch(name)]
    if re.findall(r"\(SONAME\).*\[(.*)\]", dynamic) != ["libgradwire.so.0"]:
        problems.append("its soname is not libgradwire.so.0")

    exported = {}
    for line in run("nm", "-D", "--defined-only", library).splitlines():
        name, _, version = line.split()[-1].partition("@@")
        exported[name] = version
    exported.pop("GRADWIRE_0.1", None)
    with open(header, encoding="utf-8") as file:
        declared = set(re.findall(r"^GW_API [^;]*?\b(gw_\w+)\(", file.read(), re.MULTILINE))
    problems += [f"exports {name}, which the header lacks" for name in exported.keys() - declared]
    problems += [f"does not export {name}" for name in declared - exported.keys()]
    problems += [f"{name} has version '{version}'" for name, version in exported.items() if version != "GRADWIRE_0.1"]
    for problem in sorted(problems):
        print(f"{library}: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
