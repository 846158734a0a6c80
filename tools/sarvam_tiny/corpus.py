#!/usr/bin/env python3
"""Builds the text that sarvam-tiny is trained on, from packages of Debian 12: tools/sarvam_tiny/corpus.py --work DIR

Downloads the packages of packages.txt (apt-get download), reads them (sources.py), drops duplicates, and writes
  DIR/corpus/<lang>.train.txt, <lang>.valid.txt, chat.jsonl  and, with --out, OUT/heldout/<lang>.txt and OUT/SOURCES.md.
A document of the training text ends with a form feed. The split is by hash of blocks of 50 lines, so it is the same on every machine.
"""
import argparse
import hashlib
import json
import re
import subprocess
from multiprocessing import Pool
from pathlib import Path

from sources import LANGUAGES, read_package

HERE = Path(__file__).resolve().parent
BLOCK_LINES = 50
HELDOUT_BYTES = 48_000
VALID_BYTES = 36_000
PAIRS_PER_LANGUAGE = 16_000
NAMES = {"hi": "Hindi", "bn": "Bengali", "ta": "Tamil", "te": "Telugu", "mr": "Marathi", "en": "English"}


def key(line):
    """Lines that differ only in case, digits, spaces or ASCII punctuation are the same line."""
    return re.sub(r"[\s!-@\[-`{-~\u0964\u2018\u2019\u201c\u201d\u2026\u2013\u2014]+", "", line.casefold())


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def download(names, folder):
    folder.mkdir(parents=True, exist_ok=True)
    have = {path.name.split("_")[0] for path in folder.glob("*.deb")}
    missing = [name for name in names if name not in have]
    if missing:
        subprocess.run(["apt-get", "-q", "download", *missing], cwd=folder, check=True)
    return [str(next(folder.glob(f"{name}_*.deb"))) for name in names]


def split(documents):
    """documents: {package: lines}. Returns train, valid and held-out as lists of (package, block of lines)."""
    blocks = []
    for package, lines in documents.items():
        blocks += [(package, lines[i:i + BLOCK_LINES]) for i in range(0, len(lines), BLOCK_LINES)]
    size = [len("\n".join(lines).encode()) for _, lines in blocks]
    order = sorted(range(len(blocks)), key=lambda i: digest("\n".join(blocks[i][1])))
    heldout, valid, taken = set(), set(), 0
    for i in order:
        if size[i] > HELDOUT_BYTES // 4:  # one long manual page must not be a quarter of the measure
            continue
        if taken < HELDOUT_BYTES:
            heldout.add(i)
        elif taken < HELDOUT_BYTES + VALID_BYTES:
            valid.add(i)
        else:
            break
        taken += size[i]
    train = [block for i, block in enumerate(blocks) if i not in heldout and i not in valid]
    return train, [blocks[i] for i in sorted(valid)], [blocks[i] for i in sorted(heldout)]


def join(blocks):
    return "\n\n".join("\n".join(lines) for _, lines in blocks) + "\n"


def write_train(path, blocks):
    documents = {}
    for package, lines in blocks:
        documents.setdefault(package, []).append("\n".join(lines))
    path.write_text("\f".join("\n\n".join(parts) + "\n" for parts in documents.values()))


def chat_pairs(packages, kept_out):
    """Parallel messages for the chat samples, without any line of the valid and held-out text."""
    chosen = []
    for lang in LANGUAGES[:-1]:
        seen, pairs = set(), []
        for package in packages:
            for english, target in package.pairs.get(lang, []):
                keys = key(english), key(target)
                if keys[0] in seen or keys[0] in kept_out["en"] or keys[1] in kept_out[lang]:
                    continue
                seen.add(keys[0])
                pairs.append({"lang": lang, "name": NAMES[lang], "en": english, "text": target})
        chosen += sorted(pairs, key=lambda pair: digest(pair["en"]))[:PAIRS_PER_LANGUAGE]
    return sorted(chosen, key=lambda pair: digest(pair["text"]))


def sources_table(packages, used, heldout):
    rows = ["# Text sarvam-tiny was trained on", "",
            "Packages of Debian 12, with the short licence names of their copyright files (/usr/share/doc/PACKAGE/copyright).",
            "KB of clean text by language; the last column is what the excerpts in heldout/ hold. The excerpts stay under the",
            "licences of their packages. Rebuilt by tools/sarvam_tiny/corpus.py.", "",
            "| package | version | licences | training text, KB | held-out, KB |", "| --- | --- | --- | --- | --- |"]
    for package in packages:
        def column(table):
            sizes = {lang: table[lang].get(package.name, 0) for lang in LANGUAGES}
            return ", ".join(f"{lang} {size / 1000:.1f}" for lang, size in sizes.items() if size)
        if column(used) or column(heldout):
            names = "; ".join(package.licences) or "see its copyright file"
            rows.append(f"| {package.name} | {package.version} | {names} | {column(used)} | {column(heldout)} |")
    return "\n".join(rows) + "\n"


def sizes(blocks):
    total = {}
    for package, lines in blocks:
        total[package] = total.get(package, 0) + len("\n".join(lines).encode())
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for downloads and the corpus")
    parser.add_argument("--out", type=Path, help="model folder that gets heldout/ and SOURCES.md")
    args = parser.parse_args()
    names = sorted((HERE / "packages.txt").read_text().split())
    with Pool() as pool:
        packages = pool.map(read_package, download(names, args.work / "deb"), chunksize=1)
    corpus = args.work / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    kept_out, used, held = {}, {}, {}
    for lang in LANGUAGES:
        seen, documents = set(), {}
        for package in packages:
            lines = documents.setdefault(package.name, [])
            for line in package.lines.get(lang, []):
                if key(line) not in seen:
                    seen.add(key(line))
                    lines.append(line)
        train, valid, heldout = split(documents)
        used[lang], held[lang] = sizes(train), sizes(heldout)
        kept_out[lang] = {key(line) for _, lines in valid + heldout for line in lines}
        write_train(corpus / f"{lang}.train.txt", train)
        (corpus / f"{lang}.valid.txt").write_text(join(valid))
        if args.out:
            (args.out / "heldout").mkdir(parents=True, exist_ok=True)
            (args.out / "heldout" / f"{lang}.txt").write_text(join(heldout))
        print(f"{lang}: train {sum(used[lang].values()) / 1e6:.2f} MB, valid {len(join(valid).encode())} bytes, "
              f"held-out {len(join(heldout).encode())} bytes in {len(heldout)} blocks", flush=True)
    pairs = chat_pairs(packages, kept_out)
    (corpus / "chat.jsonl").write_text("".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs))
    print(f"chat: {len(pairs)} pairs")
    if args.out:
        (args.out / "SOURCES.md").write_text(sources_table(packages, used, held))


if __name__ == "__main__":
    main()
