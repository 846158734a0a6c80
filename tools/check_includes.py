#!/usr/bin/env python3
"""Holds every include to the order of the folders (docs/architecture.md): a folder may include itself and those before it.

    tools/check_includes.py            checks the tree
    tools/check_includes.py --headers  also compiles alone every header that the build does not
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

ORDER = ["base", "telemetry", "core", "comm", "ops", "loader", "kv", "sparse", "model", "scheduler", "tokenizer", "quant",
         "engine", "cluster", "server"]
# Folders beside each other that do not know each other, although one stands later in the list.
FORBIDDEN = {"scheduler": {"model", "ops", "loader"}, "tokenizer": {"model", "scheduler", "kv"}, "kv": {"ops", "loader"},
             "loader": {"core", "ops"}, "server": {"model", "ops", "scheduler", "kv", "loader", "engine"}}
HOST_ONLY = {"scheduler", "kv", "tokenizer", "server"}  # must run in the simulator: no GPU header

root = pathlib.Path(__file__).resolve().parent.parent
errors = []
headers = []
for path in sorted((root / "src").rglob("*")):
    if path.suffix not in {".h", ".cc", ".cu", ".cuh"}:
        continue
    folder = path.relative_to(root / "src").parts[0]
    if folder not in ORDER:
        errors.append(f"{path.relative_to(root)}: folder '{folder}' is not in the list of tools/check_includes.py")
        continue
    if path.suffix == ".h":
        headers.append(path)
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
        if not match:
            continue
        place = f"{path.relative_to(root)}:{number}"
        target = match[2].split("/")[0]
        if match[1] == '"' and target != "hwy":  # Highway's own headers are quoted, as its manual wants
            if target not in ORDER:
                errors.append(f'{place}: include "{match[2]}" is not rooted at src/')
            elif ORDER.index(target) > ORDER.index(folder):
                errors.append(f"{place}: {folder}/ includes {target}/, which comes later")
            elif target in FORBIDDEN.get(folder, ()) and not path.stem.endswith(("_test", "_fuzz", "_bench")):
                errors.append(f"{place}: {folder}/ must not know {target}/")
        elif folder in HOST_ONLY and target.startswith(("cuda", "cublas", "nccl", "nvtx")):
            errors.append(f"{place}: {folder}/ includes a GPU header")

def compile_alone(header):
    result = subprocess.run(["g++", "-std=c++20", "-fsyntax-only", "-w", '-DVAYU_SOURCE_DIR=""', "-I", str(root / "src"), "-x", "c++",
                             str(header)], capture_output=True, text=True)
    return f"{header.relative_to(root)} does not compile alone:\n{result.stderr}" if result.returncode else None


# A header that some source file includes before anything else is compiled alone by the build already.
def first_include(source):
    first = re.search(r'^\s*#\s*include\s*(["<])([^">]+)[">]', source.read_text(), re.M)
    return first[2] if first and first[1] == '"' else None


if "--headers" in sys.argv[1:]:
    # A file for each SIMD target is compiled by its .cc alone.
    first = {first_include(source) for source in (root / "src").rglob("*.cc")}
    alone = [h for h in headers if "foreach_target" not in h.read_text() and not h.name.endswith("-inl.h")
             and str(h.relative_to(root / "src")) not in first]
    print(f"{len(alone)} headers are no file's first include and are compiled alone")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        errors += [fault for fault in pool.map(compile_alone, alone) if fault]

for error in errors:
    print(error)
print(f"{len(headers)} headers, {len(errors)} faults")
sys.exit(1 if errors else 0)
