"""Installs the library at a prefix that the build does not know; builds and runs a program by what lies there.

check_install.py CMAKE BUILD_OF_CLIENT PROGRAM.c
"""
import os
import pathlib
import subprocess
import sys
import tempfile

PROJECT = """cmake_minimum_required(VERSION 3.25)
project(outside LANGUAGES C)
find_package(gradwire 0.1 REQUIRED)
add_executable(outside {program})
target_link_libraries(outside PRIVATE gradwire::client)
"""


def run(*command, **environment):
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, **environment})
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def by_pkg_config(prefix, folder, program):
    found = next(prefix.rglob("gradwire.pc")).parent
    flags = run("pkg-config", "--cflags", "--libs", "gradwire", PKG_CONFIG_PATH=str(found)).split()
    for flag in flags:
        if flag[:2] in ("-I", "-L") and not os.path.realpath(flag[2:]).startswith(str(prefix)):
            sys.exit(f"gradwire.pc says {flag}, which is not below {prefix}")
    run("cc", "-std=c11", program, *flags, "-o", str(folder / "outside"))
    library = next(prefix.rglob("libgradwire.so")).parent
    run(str(folder / "outside"), LD_LIBRARY_PATH=str(library))


def by_cmake(cmake, prefix, folder, program):
    (folder / "CMakeLists.txt").write_text(PROJECT.format(program=program))
    build = str(folder / "build")
    run(cmake, "-S", str(folder), "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}")
    run(cmake, "--build", build)
    run(build + "/outside")


def main():
    cmake, client, program = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(os.path.realpath(name))
        prefix = folder / "elsewhere"
        run(cmake, "--install", client, "--prefix", str(prefix))
        by_pkg_config(prefix, folder, program)
        by_cmake(cmake, prefix, folder, program)


if __name__ == "__main__":
    main()
