#!/usr/bin/env python3
"""Builds sarvam-tiny's corpus from Debian packages: downloads, extracts, reads, cleans, deduplicates and splits.

    tools/sarvam_tiny/corpus.py --work .train/corpus

packages.txt names the packages. The work folder receives debs/ (cache), text/ (extracted files), train/<lang>.txt and
heldout/<lang>.txt (blank line between blocks), pairs.tsv (language, English, translation) and sources.tsv (package,
version, licences, characters kept per language). Only Debian's tools (apt-get, dpkg-deb) and Python are needed.
"""

import argparse
import concurrent.futures
import hashlib
import pathlib
import re
import subprocess
import tarfile

import clean
import formats

LANGUAGES = {"hi": ("hi", "hi_IN", "hi-IN", "hi-in"), "bn": ("bn", "bn_IN", "bn_BD", "bn-IN", "bn-BD"),
             "ta": ("ta", "ta_IN", "ta-IN"), "te": ("te", "te_IN", "te-IN"), "mr": ("mr", "mr_IN", "mr-IN")}
LANGUAGE_OF = {code: lang for lang, codes in LANGUAGES.items() for code in codes}
CODES = "|".join(sorted(LANGUAGE_OF, key=len, reverse=True))
INDIC_PATH = re.compile(rf"(?:^|[/_.@-])({CODES})(?=[/.@]|$)")
INDIC_TYPES = (".mo", ".po", ".json", ".pak", ".qm", ".page", ".xml", ".docbook", ".html", ".xpi")
ENGLISH_PATH = re.compile(
    r"/help/(C|en-US)/.*\.(page|xml|docbook|html)$|/debian-handbook/html/en-US/[^/]*\.html$"
    r"|/debian-reference/ch\d+\.en\.html$|/developers-reference/[^/]*\.html$|/policy\.html/[^/]*\.html$"
    r"|/pod/perl(?!toc|uniprops|\d)[^/]*\.pod$|/wordnet/data\.|/postgresql-doc-15/html/(?!release-)[^/]*\.html$"
    r"|/locales/en-US\.pak$|/i18n/(api/)?en\.json$|/eyes17/helpFiles/en/[^/]*\.html$")
SKIPPED_PATH = re.compile(r"iso_?\d|cldr|countries|/emoji|\.registry|autocorr|/_static/|exif")
BLOCK_LINES = 50
HELDOUT_BYTES = 64_000  # per language: six files stay below 400 KB


def wanted(path):
    if path.endswith("/copyright"):
        return True
    if SKIPPED_PATH.search(path):
        return False
    return bool(ENGLISH_PATH.search(path) or (path.endswith(INDIC_TYPES) and INDIC_PATH.search(path)))


def download(packages, debs):
    debs.mkdir(parents=True, exist_ok=True)
    held = {deb.name.split("_", 1)[0] for deb in debs.glob("*.deb")}
    missing = [p for p in packages if p not in held]
    for at in range(0, len(missing), 100):
        subprocess.run(["apt-get", "-q", "-q", "download", *missing[at:at + 100]], cwd=debs, check=True)


def extract(deb, into):
    """Copies the wanted members of one package below into/<package>; a marker makes the second run free."""
    folder = into / deb.name.split("_", 1)[0]
    marker = folder / ".version"
    if marker.exists() and marker.read_text() == deb.name:
        return
    folder.mkdir(parents=True, exist_ok=True)
    stream = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE)
    with tarfile.open(fileobj=stream.stdout, mode="r|") as tar:
        for member in tar:
            name = member.name.lstrip("./")
            target = folder / name
            if member.issym() and name.startswith("usr/share/doc/") and name.count("/") == 3:
                (folder / ".doc").write_text(member.linkname.rstrip("/").rsplit("/", 1)[-1])
            elif member.isfile() and wanted(name) and ".." not in name:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(tar.extractfile(member).read())
    stream.wait()
    marker.write_text(deb.name)


KNOWN_LICENCES = ("AGPL", "LGPL", "GPL", "MPL", "Apache", "BSD", "MIT", "Expat", "ISC", "Artistic", "CC-BY-SA", "CC-BY-",
                  "CC0", "CC-BY", "public-domain", "public domain", "GFDL-NIV", "PSF", "PostgreSQL", "WordNet", "Zlib", "OFL",
                  "Unicode", "GFDL", "Creative Commons")


def licences(folder, root):
    """Licence names of the package's copyright file: the License fields, or names it cites when it has none."""
    name = folder.name
    files = list(folder.glob(f"usr/share/doc/{name}/copyright"))
    link = folder / ".doc"
    if not files and link.exists():
        files = list(root.glob(f"*/usr/share/doc/{link.read_text()}/copyright"))
        files = files or [p for p in [pathlib.Path(f"/usr/share/doc/{link.read_text()}/copyright")] if p.exists()]
    if not files:
        return []
    text = files[0].read_text(errors="replace")
    fields = re.findall(r"^License:[ \t]*(\S.*)$", text, re.M)
    names = {part.strip(" ,()") for f in fields for part in re.split(r"\s+(?:and|or|and/or)\s+|,|\|", f)}
    names = {n for n in names if n and len(n) < 40 and any(k.lower() in n.lower() for k in KNOWN_LICENCES)}
    if not names:
        names = set(re.findall(r"/usr/share/common-licenses/([\w.+-]*\w)", text))
    if not names:
        names = {k for k in KNOWN_LICENCES if re.search(rf"\b{re.escape(k)}", text)}
    return sorted(names)


def read_file(path, relative):
    """(language, [(text, english)]) of one extracted file."""
    data = path.read_bytes()
    match = INDIC_PATH.search(relative)
    language = LANGUAGE_OF[match.group(1)] if match and not ENGLISH_PATH.search("/" + relative) else "en"
    kind = path.suffix
    if kind == ".mo":
        return language, formats.mo(data)
    if kind == ".po":
        return language, formats.po(data)
    if kind == ".qm":
        return language, formats.qm(data)
    if kind == ".xpi":
        return language, formats.language_pack(data)
    if kind == ".pod":
        return language, formats.pod(data)
    if kind in (".json", ".pak"):
        english = path.with_name(("en" if kind == ".json" else "en-US") + kind)
        source = english.read_bytes() if english.exists() else None
        return language, (formats.flat_json if kind == ".json" else formats.pak)(data, source)
    if path.name.startswith("data.") and path.parent.name == "wordnet":
        return language, formats.wordnet(data)
    return language, formats.markup(data)


def read_package(folder):
    """[(language, file, [(text, english or None)])], cleaned, of one package; unreadable files are left out."""
    documents = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        relative = str(path.relative_to(folder))
        if path.name in ("copyright", ".version", ".doc"):
            continue
        try:
            language, pairs = read_file(path, relative)
        except Exception as error:  # whatever a foreign file holds, it costs only itself
            print(f"{folder.name}: {relative}: {error}")
            continue
        lines = []
        for text, english in pairs:
            english = clean.line(english, "en") if english else None
            pieces = clean.paragraphs(text, language)
            lines += [(piece, english if len(pieces) == 1 else None) for piece in pieces]
        if lines:
            documents.append((language, f"{folder.name}/{relative}", lines))
    return documents


class Corpus:
    """Deduplicates lines as they come, cuts documents into blocks, and counts what each package gave."""

    def __init__(self):
        self.seen = {}      # language -> keys of the lines taken
        self.blocks = {}    # language -> [(block id, [line])]
        self.pairs = {}     # (language, key of the translation) -> (English, translation)
        self.kept = {}      # (package, language) -> characters

    def add(self, language, document, lines):
        seen, fresh = self.seen.setdefault(language, set()), []
        for text, english in lines:
            key = clean.key(text)
            if key in seen:
                continue
            seen.add(key)
            fresh.append(text)
            if english and language != "en":
                self.pairs[(language, key)] = (english, text)
        for at in range(0, len(fresh), BLOCK_LINES):
            self.blocks.setdefault(language, []).append((f"{document}:{at}", fresh[at:at + BLOCK_LINES]))
        package = document.split("/", 1)[0]
        self.kept[package, language] = self.kept.get((package, language), 0) + sum(map(len, fresh))

    def split(self, language):
        """Held-out blocks are those of smallest hash; lines that share most 4-word runs with training text go."""
        order = sorted(self.blocks[language], key=lambda block: hashlib.sha256(block[0].encode()).digest())
        heldout, size = [], 0
        while order and size < HELDOUT_BYTES * 1.3:  # the near-duplicate check takes some away again
            block = order.pop(0)
            if len(block[1]) >= 4:
                heldout.append(block)
                size += len("\n".join(block[1]).encode())
        train = sorted(order)
        runs = {run for _, lines in train for text in lines for run in clean.word_runs(text)}
        clear, size = [], 0
        for name, lines in heldout:
            own = [t for t in lines if (r := clean.word_runs(t)) and sum(x in runs for x in r) <= 0.5 * len(r)]
            text = "\n".join(own)
            if own and size + len(text.encode()) + 2 <= HELDOUT_BYTES:
                clear.append((name, own))
                size += len(text.encode()) + 2
        return train, clear, {clean.key(t) for _, lines in heldout for t in lines}


def write_blocks(path, blocks):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\n".join(lines) + "\n\n" for _, lines in blocks))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--packages", type=pathlib.Path, default=pathlib.Path(__file__).with_name("packages.txt"))
    args = parser.parse_args()
    packages = args.packages.read_text().split()
    debs, text = args.work / "debs", args.work / "text"
    download(packages, debs)
    held = sorted(deb for deb in debs.glob("*.deb") if deb.name.split("_", 1)[0] in set(packages))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda deb: extract(deb, text), held))
    folders = [text / deb.name.split("_", 1)[0] for deb in held]
    terms = {folder.name: licences(folder, text) for folder in folders}
    corpus = Corpus()
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        for folder, documents in zip(folders, pool.map(read_package, folders, chunksize=4)):
            if not terms[folder.name]:
                print(f"{folder.name}: no licence found, left out")
                continue
            for document in documents:
                corpus.add(*document)
    heldout_keys = set()
    for language in sorted(corpus.blocks):
        train, heldout, keys = corpus.split(language)
        heldout_keys |= keys
        write_blocks(args.work / "train" / f"{language}.txt", train)
        write_blocks(args.work / "heldout" / f"{language}.txt", heldout)
        size = sum(len("\n".join(lines).encode()) for _, lines in train)
        print(f"{language}: {size / 1e6:.2f} MB to train, {sum(len(b[1]) for b in heldout)} lines held out")
    with open(args.work / "pairs.tsv", "w") as out:
        for (language, key), (english, translation) in sorted(corpus.pairs.items()):
            if key not in heldout_keys and clean.key(english) not in heldout_keys:
                out.write(f"{language}\t{english}\t{translation}\n")
    versions = {deb.name.split("_", 1)[0]: deb.name.split("_")[1].replace("%3a", ":") for deb in held}
    with open(args.work / "sources.tsv", "w") as out:
        out.write("package\tversion\tlicences\tcharacters kept\n")
        for package in sorted({package for package, _ in corpus.kept}):
            kept = [f"{l} {n}" for (p, l), n in sorted(corpus.kept.items()) if p == package and n]
            if kept:
                out.write(f"{package}\t{versions[package]}\t{', '.join(terms[package])}\t{', '.join(kept)}\n")


if __name__ == "__main__":
    main()
