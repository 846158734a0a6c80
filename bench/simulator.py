#!/usr/bin/env python3
"""Scheduler and KV bookkeeping under random traffic, and what a step of planning costs.

    bench/simulator.py [--steps N] [--seed S]

Runs tests/sim (every answer is compared with the one computed alone, pages are audited at each step), then scheduler_bench
from build-bench (tools/build.sh build-bench scheduler_bench -- -DVAYU_BENCH=ON) when it is there.
"""
import argparse
import json
import os
import re
import subprocess

from common import ROOT, write_result

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1_000_000)
parser.add_argument("--seed", type=int)
args = parser.parse_args()
env = {**os.environ, "VAYU_SIM_STEPS": str(args.steps)}
if args.seed is not None:
    env["VAYU_SIM_SEED"] = str(args.seed)
out = subprocess.run([ROOT / "build/tests/sim/sim_test"], env=env, capture_output=True, text=True, check=True).stdout
seed = re.search(r"VAYU_SIM_SEED=(\d+)", out)[1]
line = re.search(r"^\d+ steps in .*$", out, re.M)[0]
metrics = {name.replace(" ", "_"): int(value) for value, name in re.findall(r"(\d+) ([A-Za-z ]+?)(?=[,:;]| in |$)", line)}
bench = ROOT / "build-bench/src/scheduler/scheduler_bench"
if bench.exists():
    rows = json.loads(subprocess.run([bench, "--benchmark_format=json"], capture_output=True, text=True, check=True).stdout)
    for row in rows["benchmarks"]:
        metrics["plan_commit_us " + row["name"]] = row["cpu_time"] / {"ns": 1e3, "us": 1, "ms": 1e-3}[row["time_unit"]]
write_result("simulator", metrics, f"seed {seed}; {line}")
