#!/usr/bin/env python3
"""Files for bench/results/ from what tools/gpu_kernels.sh and tools/gpu_proof.sh left in a folder: a layer in each shape, whole
steps, every op by itself, and what tests and sanitizers found."""

import json
import os
import pathlib
import re
import sys

NOTES = (
    "medians in us with a cold second-level cache; baseline: PyTorch's best of eager, graph, compiled, BF16 and FP8, "
    "baseline_eager: BF16 eager; share: of the larger of bytes over measured read bandwidth and FLOPs over matrix "
    "peak; layer: one of four layers back to back in a graph. norm_qkv has a norm of its own; in a layer of ours that "
    "norm is part of combine, so the sum of a layer leaves it out once"
)


def layer_metrics(shape):
    metrics = {}
    for op, entry in [*shape["operators"].items(), ("layer", shape["layer"])]:
        metrics[f"{op}_us"] = round(entry["us"], 2)
        for key, name in (("baseline_us", "baseline_us"), ("baseline_eager_us", "baseline_eager_us")):
            if key in entry:
                metrics[f"{op}_{name}"] = round(entry[key], 2)
        if "share_of_ceiling" in entry:
            metrics[f"{op}_share"] = round(entry["share_of_ceiling"], 3)
    metrics["sum_us"] = round(shape["sum_us"], 2)
    metrics["experts_touched"] = shape["experts_touched"]
    return metrics


def write_proof(folder):
    """Counts of both runs in one file. A run that is not in the folder keeps what the last file has of the same commit."""
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("proof_*.json"))]
    if not runs:
        return
    commits = {run["commit"] for run in runs}
    if len(commits) > 1:
        sys.exit(f"{folder}: runs of several commits: {', '.join(sorted(commits))}")
    last = pathlib.Path(__file__).parent.parent / "bench/results/h200_proof.json"
    before = json.loads(last.read_text()) if last.exists() else {}
    if before.get("commit") != runs[0]["commit"]:
        before = {}
    metrics, commands = before.get("metrics", {}), before["command"].split("; ") if before else []
    notes = []
    for run in runs:
        commands += [run["command"]] if run["command"] not in commands else []
        for suite, entry in run["suites"].items():
            metrics |= {f"{suite}_{state}": entry[state] for state in ("passed", "failed", "cut", "not_run")}
            notes += [f"{suite} {state.replace('_', ' ')}: {' '.join(names)}" for state, names in entry["names"].items()]
    source = {"hardware": runs[0]["hardware"], "command": "; ".join(commands), "commit": runs[0]["commit"]}
    write(folder, "h200_proof", source, metrics, "; ".join(notes) or "all tests ran to their end and passed")


def write_ops(folder):
    """The lines of the speed tests. Of the plans of a GEMM the first is the one that is used."""
    log = folder / "speed.log"
    if not log.exists():
        return
    metrics = {}
    for line in log.read_text().splitlines():
        if not (found := re.match(r"SPEED (.+?):? ([\d.]+) us", line)):
            continue
        name = re.sub(r" width \d+ stages \d+ cluster \d", "", found[1])
        key = re.sub(r"\W+", "_", name).strip("_")
        metrics.setdefault(f"{key}_us", float(found[2]))
        if chained := re.search(r", (?:chained|in a chain) ([\d.]+) us", line):
            metrics.setdefault(f"{key}_chained_us", float(chained[1]))
    source = {"hardware": "one NVIDIA H200", "command": "tools/gpu_proof.sh speed"}
    write(folder, "h200_ops", source, metrics, "medians; names are the lines of the speed tests, which hold rates and shares of the ceiling too")


def write(folder, name, source, metrics, notes):
    record = {
        "name": name,
        "commit": source.get("commit") or os.environ.get("COMMIT", "unknown"),
        "hardware": source["hardware"],
        "command": source["command"].replace(str(folder), "$OUT"),
        "metrics": metrics,
        "notes": notes,
    }
    (folder / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    print("wrote", folder / f"{name}.json")


def main():
    folder = pathlib.Path(sys.argv[1])
    write_proof(folder)
    write_ops(folder)
    for dtype, suffix in (("fp8", ""), ("bf16", "_bf16")):
        kernels = folder / f"kernels_{dtype}.json"
        if kernels.exists():
            source = json.loads(kernels.read_text())
            notes = f"{source['model']}, {dtype}; ceilings {source['ceilings']}; {NOTES}"
            for shape, result in source["shapes"].items():
                name = f"h200_layer_{shape.replace('_', '')}{suffix}"
                write(folder, name, source, layer_metrics(result), notes)
        steps = folder / f"steps_{dtype}.json"
        if steps.exists():
            source = json.loads(steps.read_text())
            metrics = {"load_s": round(source["load_s"], 2)}
            for step, result in source["steps"].items():
                for key in ("device_us", "wall_us", "host_share", "floor_us", "share_of_floor", "tokens_per_s"):
                    metrics[f"{step}_{key}"] = round(result[key], 4)
            notes = f"{source['model']} with seeded weights, {dtype}, context {source['context']}; medians"
            write(folder, f"h200_steps{suffix}", source, metrics, notes)


if __name__ == "__main__":
    main()
