#!/usr/bin/env python3
"""Files for bench/results/ from what the scripts tools/gpu_*.sh left in a folder: every op by itself, a layer in each shape, whole steps,
steps kernel by kernel, what tests and sanitizers found, and the end-to-end tests on the GPU.

    tools/gpu_results.py FOLDER
"""

import json
import os
import pathlib
import re
import sys
import xml.etree.ElementTree

import gpu_tests

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "bench/results"
LAYER_NOTES = (
    "medians in us with a cold second-level cache; baseline: PyTorch's best of eager, graph, compiled, BF16 and FP8, "
    "baseline_eager: BF16 eager; share: of the larger of bytes over measured read bandwidth and FLOPs over matrix "
    "peak; layer: one of four layers back to back in a graph. norm_qkv has a norm of its own; in a layer of ours that "
    "norm is part of combine, so the sum of a layer leaves it out once. In the graph a prompt's shared expert is in line with the "
    "routed ones (in steps beside them), and prompts back to back run at the card's power limit: more than the sum"
)
OPS_NOTES = (
    "medians of the speed tests, named as these print them, of a GEMM's plans the one that is used. _us: a launch by itself on a cold "
    "second-level cache, about 3 us of launch and events among them, but stream_linear, mla_gather and up to 64 tokens of "
    "device_head_linear in a chain; _chained_us: one of many in a graph; _between_reads_us: in a graph between reads of other memory, "
    "without these. _share: of the ceiling (memory: 4.25 or 4.3 TB/s, or what plain reads got in that process; products: 1,430 TFLOP/s in "
    "FP8, 800 in BF16), the larger where a line has two. _gb_s, _tflops: of the time whose share the line has; the other times' shares "
    "follow from it"
)
# Steps of vayu bench steps by file, as they are called in h200_model.json; the last is not needed for it.
STEPS = {"fp8": ("h200_steps", "fp8"), "bf16": ("h200_steps_bf16", "bf16"), "105b_fp8": ("h200_steps_105b", "mla_fp8"),
         "105b_fp8_absorbed": ("h200_steps_105b_absorbed", "mla_fp8_absorbed")}
PROFILES = ("decode", "mixed", "prompt", "105b_prompt", "serving")
# Kernels of a prompt with latent attention, for h200_model.json.
PROMPT_PARTS = {"f8_gemm": r"^gemm_kernel<.*F8Products", "expand": r"^gemm_kernel<.*Bf16Products", "attention": r"^mla_prefill_kernel"}


def commit():
    return os.environ.get("COMMIT", "unknown")


def read(path):
    return json.loads(path.read_text()) if path.exists() else None


def write(folder, name, source, metrics, notes, **more):
    record = {
        "name": name,
        "commit": source.get("commit") or commit(),
        "hardware": source["hardware"],
        "command": source["command"].replace(str(folder), "$OUT"),
        "metrics": metrics,
        "notes": notes,
        **more,
    }
    (folder / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    print("wrote", folder / f"{name}.json")


def slug(text):
    return re.sub(r"\W+", "_", text).strip("_")


# Ops.


def speed_of(line):
    """Name, times by suffix, the rated time's suffix, rates, share and further figures of a line of the speed tests; None of other lines."""
    found = re.match(r"SPEED (.+?):? ([\d.]+) us", line)
    if not found:
        return None
    name = re.sub(r" width \d+ stages \d+ cluster \d| alone$", "", found[1])
    more = {}
    if experts := re.search(r" experts (\d+)$", name):  # as many as the rows of that run happened to choose
        name, more = name[:experts.start()], {"experts": int(experts[1])}
    if norm := re.search(r"us both, ([\d.]+) the norm alone", line):
        more["norm_alone_us"] = float(norm[1])
    times = {"": float(found[2])}
    for words, suffix in ((r"chained|in a chain", "_chained"), ("between reads", "_between_reads")):
        if time := re.search(rf"[,(] ?(?:{words}) ([\d.]+)(?: us|[,)])", line):
            times[suffix] = float(time[1])
    rated = "_chained" if re.search(r"chained (?:[\d.]+ us )?[\d.]+ (?:GB|TB|TFLOP)/s", line) else ""
    rates = {unit: float(value) for value, unit in re.findall(r"([\d.]+) (GB/s|TB/s|TFLOP/s)", line)}
    # Shares end the line, or each stands behind its rate: 0.05 of 4300, 34% of 4250, 62 %, 0.535.
    shares = [float(value) / (100 if percent else 1)
              for value, percent in re.findall(r"/s (\d*\.?\d+)( ?%)?(?= of|,|$)", line.strip())]
    return slug(name), times, rated, rates, max(shares, default=None), more


def op_metrics(lines):
    """Of the plans of a GEMM the first is the one that is used: the others are of the same name, and left out."""
    metrics = {}
    for line in lines:
        speed = speed_of(line)
        if not speed or f"{speed[0]}_us" in metrics:
            continue
        name, times, rated, rates, share, more = speed
        for suffix, us in times.items():
            metrics[f"{name}{suffix}_us"] = us
            if share is not None:
                metrics[f"{name}{suffix}_share"] = round(share * times[rated] / us, 3)
        for unit, scale, key in (("GB/s", 1, "gb_s"), ("TB/s", 1e3, "gb_s"), ("TFLOP/s", 1, "tflops")):
            if unit in rates:
                metrics[f"{name}_{key}"] = round(rates[unit] * scale, 1)
        metrics |= {f"{name}_{key}": value for key, value in more.items()}
    return metrics


def write_ops(folder):
    log = folder / "speed.log"
    if not log.exists():
        return
    lines = log.read_text().splitlines()
    chosen = next((line for line in lines if line.startswith("Note: Google Test filter = ")), "*Speed*")
    if not chosen.endswith(" *Speed*"):
        print("some of the speed tests: no h200_ops.json", file=sys.stderr)
        return
    metrics = op_metrics(lines)
    last = read(RESULTS / "h200_ops.json") or {"metrics": {}}
    if lost := sorted(set(last["metrics"]) - set(metrics)):
        print(f"bench/results/h200_ops.json has {len(lost)} figures that this run has not: {' '.join(lost)}", file=sys.stderr)
    source = {"hardware": gpu_tests.gpu_hardware(), "command": "tools/gpu_proof.sh speed"}
    write(folder, "h200_ops", source, metrics, OPS_NOTES)


# Tests.


def write_proof(folder):
    """Counts of both runs in one file. A run that is not in the folder keeps what the last file has of the same commit."""
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("proof_*.json"))]
    if not runs:
        return
    commits = {run["commit"] for run in runs}
    if len(commits) > 1:
        sys.exit(f"{folder}: runs of several commits: {', '.join(sorted(commits))}")
    before = read(RESULTS / "h200_proof.json") or {}
    if before.get("commit") != runs[0]["commit"]:
        before = {}
    metrics, commands = before.get("metrics", {}), before["command"].split("; ") if before else []
    names = before.get("names", {})
    more = {key: before[key] for key in ("explained_races", "not_raced", "not_sanitized") if key in before}
    for run in runs:
        commands += [run["command"]] if run["command"] not in commands else []
        for suite, entry in run["suites"].items():
            metrics |= {f"{suite}_{state}": entry[state] for state in gpu_tests.STATES}
            names[suite] = entry["names"]
        if "explained_races" in run:
            explained = run["explained_races"]
            metrics["ops_racecheck_explained_reports"] = sum(entry["reports"] for entry in explained.values())
            metrics["ops_racecheck_left_out"] = len(run["not_raced"])
            more = {"explained_races": {"why": gpu_tests.WHY_EXPLAINED, "tests": explained}, "not_raced": run["not_raced"],
                    "not_sanitized": run.get("not_sanitized", {})}
    notes = ["all that ran ended and passed" if not any(set(entry) - {"skipped"} for entry in names.values()) else "see names"]
    if "not_raced" in more:
        notes += ["under a sanitizer tests have fewer repeats and smaller sizes of every kind of case (VAYU_TEST_SHORT); memcheck: ops, models "
                  "and engine, without not_sanitized; racecheck: ops alone (models and engine launch the same kernels), without not_raced; a test of whose reports "
                  "all are explained_races counts as passed"]
    source = {"hardware": runs[0]["hardware"], "command": "; ".join(commands), "commit": runs[0]["commit"]}
    write(folder, "h200_proof", source, metrics, "; ".join(notes), names={suite: entry for suite, entry in names.items() if entry}, **more)


def write_e2e(folder):
    """pytest's own report."""
    report = folder / "e2e.xml"
    if not report.exists():
        return
    suite = next(xml.etree.ElementTree.parse(report).getroot().iter("testsuite"))
    named = {"failed": {}, "skipped": {}}
    for case in suite.iter("testcase"):
        for tag, state in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            for entry in case.iter(tag):
                file = case.get("classname", "").replace(".", "/")
                named[state][f"{file}.py::{case.get('name')}"] = entry.get("message", "").splitlines()[0]
    counts = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    metrics = {"passed": counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"],
               "failed": counts["failures"] + counts["errors"], "skipped": counts["skipped"], "seconds": round(float(suite.get("time", 0)), 1)}
    source = {"hardware": gpu_tests.gpu_hardware(), "command": "tools/gpu_smollm2.sh e2e"}
    write(folder, "h200_e2e", source, metrics, "end-to-end tests with the server on the GPU (VAYU_E2E_DEVICE=cuda), SmolLM2-135M Q4_1 and "
          "sarvam-tiny; names with what pytest says; a test whose setup fails has failed; not run: the web page (no browser there), vayu eval "
          "(the CPU's figures) and the tests of these scripts", names={state: tests for state, tests in named.items() if tests})


# A layer, steps.


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


def write_layers(folder):
    for dtype, suffix in (("fp8", ""), ("bf16", "_bf16")):
        if source := read(folder / f"kernels_{dtype}.json"):
            notes = f"{source['model']}, {dtype}; ceilings {source['ceilings']}; {LAYER_NOTES}"
            for shape, result in source["shapes"].items():
                write(folder, f"h200_layer_{shape.replace('_', '')}{suffix}", source, layer_metrics(result), notes)


def write_steps(folder):
    for what, (name, _) in STEPS.items():
        if source := read(folder / f"steps_{what}.json"):
            metrics = {"load_s": round(source["load_s"], 2)}
            for step, result in source["steps"].items():
                for key in ("device_us", "wall_us", "host_share", "floor_us", "share_of_floor", "tokens_per_s"):
                    metrics[f"{step}_{key}"] = round(result[key], 4)
            notes = f"{source['model']} with seeded weights, {what.removeprefix('105b_').replace('_', ', ')}, context {source['context']}; medians; memory: {source['memory_plan']}"
            write(folder, name, source, metrics, notes)


def write_model(folder):
    """The table of all steps, from one run of them; left alone where a run has not all of them."""
    sources = {prefix: source for what, (_, prefix) in STEPS.items() if (source := read(folder / f"steps_{what}.json"))}
    if not {"fp8", "bf16", "mla_fp8"} <= set(sources):
        return
    metrics, commands = {}, ["tools/gpu_kernels.sh steps"]
    for prefix, source in sources.items():
        for step, result in source["steps"].items():
            kind, size = step.split("_")
            key = f"decode_{{}}_b{size}" if kind == "decode" else f"prefill{size}_{{}}"
            metrics[f"{prefix}_{key.format('ms')}"] = round(result["device_us"] / 1e3, 3)
            metrics[f"{prefix}_{key.format('share_of_read_floor' if kind == 'decode' else 'share_of_floor')}"] = round(result["share_of_floor"], 3)
        metrics[f"{prefix}_load_s"] = round(source["load_s"], 2)
    metrics["read_tb_s"] = round(sources["fp8"]["read_gb_s"] / 1e3, 2)
    if profile := read(folder / "profile_105b_prompt.json"):
        commands.append("tools/gpu_kernels.sh profile")
        for part, pattern in PROMPT_PARTS.items():
            own = sum(kernel["own_us"] for kernel in profile["kernels"] if re.search(pattern, kernel["name"]))
            metrics[f"mla_fp8_prefill3584_profile_{part}_ms"] = round(own / 1e3, 3)
    source = {"hardware": "one " + sources["fp8"]["hardware"], "command": "; ".join(commands)}
    write(folder, "h200_model", source, metrics, f"sarvam-30b (mla: sarvam-105b), seeded weights made on the device, context "
          f"{sources['fp8']['context']}, device time of a step with greedy sampling, medians; floor: the larger of bytes and arithmetic; "
          "absorbed: prompts too in the form of decoding; profile: own time of kernels under CUPTI; commands of the single runs in h200_steps*.json")


def write_profiles(folder):
    """The kernels of each profiled step, own time: without what ran beside them."""
    found = {what: source for what in PROFILES if (source := read(folder / f"profile_{what}.json"))}
    if not found:
        return
    metrics = {}
    for what, source in found.items():
        metrics |= {f"{what}_step_us": round(source["step_us"], 1), f"{what}_busy_us": round(source["busy_us"], 1)}
        for kernel in source["kernels"]:
            if kernel["own_us"] >= 0.001 * source["busy_us"]:
                key = f"{what}_{slug(kernel['name'].replace('vayu::ops::', ''))}_us"
                metrics[key] = round(metrics.get(key, 0) + kernel["own_us"], 1)
    source = {"hardware": "one " + next(iter(found.values()))["hardware"], "command": "tools/gpu_kernels.sh profile"}
    runs = {what: f"{entry['model']}, {entry['tokens']:.0f} tokens a step: {entry['command'].replace(str(folder), '$OUT')}" for what, entry in found.items()}
    write(folder, "h200_profile", source, metrics, "a step under CUPTI, mean: step_us from launch to end, busy_us in which the device works, and "
          "each kernel's own time, in us a step; kernels of less than 0.1 % left out; serving: a server's under 32 conversations. CUPTI adds to decode "
          "steps; prompts are shorter than in h200_steps*.json, whose many steps in a row run at the card's power limit", runs=runs)


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) == 2 else "")
    if len(sys.argv) != 2 or not folder.is_dir():
        sys.exit(__doc__)
    write_proof(folder)
    write_ops(folder)
    write_layers(folder)
    write_steps(folder)
    write_model(folder)
    write_profiles(folder)
    write_e2e(folder)


if __name__ == "__main__":
    main()
