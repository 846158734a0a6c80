"""Readers of Debian packages for corpus.py: catalogues (.mo), MediaWiki messages, help pages, language packs, HTML.

Every reader turns one file of a package into clean lines: no markup, no accelerators, one message or paragraph a line.
"""
import html
import io
import json
import re
import struct
import subprocess
import tarfile
import unicodedata
import zipfile
from dataclasses import dataclass, field

LANGUAGES = ("hi", "bn", "ta", "te", "mr", "en")
SCRIPTS = {"hi": "\u0900-\u097f", "mr": "\u0900-\u097f", "bn": "\u0980-\u09ff", "ta": "\u0b80-\u0bff", "te": "\u0c00-\u0c7f"}
# Typography that every language of the corpus uses: joiners, quotes, dashes, ellipsis, danda, signs.
COMMON = "\u200c\u200d\u2018\u2019\u201c\u201d\u2013\u2014\u2026\u2022\u2192\u0964\u0965\u00a9\u00ae\u00b0\u00d7\u20b9"
ALLOWED = {lang: re.compile(f"[ -~{COMMON}{SCRIPTS.get(lang, '')}]+") for lang in LANGUAGES}
IN_SCRIPT = {lang: re.compile(f"[{block}]") for lang, block in SCRIPTS.items()}

LOCALE = re.compile(r"(?:^|[/-])(hi|bn|ta|te|mr)(?:_(?:IN|BD|LK))?(?:/|\.mo$)")
HELP_PAGE = re.compile(r"/help/(C|hi|bn|ta|te|mr)/.*\.page$")
MESSAGES = re.compile(r"^(.*)/(en|hi|bn|ta|te|mr)\.json$")
LANGPACK = re.compile(r"langpack-(hi|bn|ta|te|mr)(?:-IN)?@.*\.xpi$")
LIBREOFFICE_HELP = re.compile(r"^libreoffice-help-(hi|en)")
HTML_PAGE = re.compile(r"\.html?$")
# English manuals read as HTML, with the paths to read. The other manuals of a package are translations.
MANUALS = {
    "abs-guide": r".", "debian-faq": r".", "debian-handbook": r"/en-US/", "debian-reference-en": r".",
    "developers-reference": r".", "maint-guide": r".", "postgresql-doc-15": r".", "python3.11-doc": r".",
}
# English is easy to find: no manual may dominate it.
MANUAL_BYTES = 2_000_000


@dataclass
class Package:
    name: str
    version: str
    licences: list[str] = field(default_factory=list)
    lines: dict[str, list[str]] = field(default_factory=dict)  # by language
    pairs: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # by language: (English, translation)

    def add(self, lang, lines):
        self.lines.setdefault(lang, []).extend(line for line in lines if line)


def clean(text, lang):
    """One clean line, or '' if the text is too short, in another script, or hardly text at all."""
    text = re.sub(r"^_: .*\n", "", text)  # KDE's old context marker
    text = re.sub(r"<[^<>]{1,200}>", " ", text)
    text = html.unescape(text)
    text = re.sub(r"<[^<>]{1,200}>", " ", text)  # markup that was itself escaped
    text = re.sub(r"\\[nrt]", " ", text)
    text = re.sub(r"\s*\([&_~][A-Za-z0-9]\)", "", text)  # accelerator after a translation: "(_F)"
    text = re.sub(r"[&~](?=[^\W\d_])", "", text)
    if text.count("_") == 1:
        text = re.sub(r"_(?=[^\W\d_])", "", text)
    text = unicodedata.normalize("NFC", text.replace("\u00a0", " ").replace("\ufeff", ""))
    text = re.sub(r"\s+", " ", text).strip()
    if not 14 <= len(text) <= 1500 or text.count(" ") < 2 or not ALLOWED[lang].fullmatch(text):
        return ""
    latin = len(re.findall(r"[A-Za-z]", text))
    if lang == "en":
        return text if latin >= 0.6 * len(text) else ""
    own = len(IN_SCRIPT[lang].findall(text))
    return text if own >= 8 and own >= latin else ""


def paragraphs(text, lang):
    return [clean(part, lang) for part in re.split(r"\n\s*\n", text)]


def read_mo(data):
    """(msgid, msgstr) of a compiled GNU gettext catalogue; contexts and plural forms are dropped."""
    if len(data) < 20 or data[:4] not in (b"\xde\x12\x04\x95", b"\x95\x04\x12\xde"):
        return
    order = "<" if data[:4] == b"\xde\x12\x04\x95" else ">"
    count, ids, strings = struct.unpack_from(order + "3I", data, 8)
    for i in range(count):
        size, at = struct.unpack_from(order + "2I", data, ids + 8 * i)
        size_to, at_to = struct.unpack_from(order + "2I", data, strings + 8 * i)
        msgid = data[at:at + size].split(b"\0")[0].split(b"\x04")[-1]
        msgstr = data[at_to:at_to + size_to].split(b"\0")[0]
        if msgid and msgstr:
            yield msgid.decode("utf-8", "ignore"), msgstr.decode("utf-8", "ignore")


def html_lines(text, lang):
    text = re.sub(r"(?is)<(script|style|pre|head|nav)\b.*?</\1>", "\n\n", text)
    text = re.sub(r"(?i)</?(p|div|li|ul|ol|h\d|tr|td|th|table|dt|dd|dl|br|section|title|item|note|info)\b[^>]*>", "\n\n", text)
    return [line for line in paragraphs(text, lang) if len(line) >= (40 if lang == "en" else 20)]


def langpack_lines(data, lang):
    """Messages of a Mozilla language pack: Fluent (.ftl) and Java properties."""
    with zipfile.ZipFile(io.BytesIO(data)) as pack:
        for name in sorted(pack.namelist()):
            if name.endswith((".ftl", ".properties")):
                text = pack.read(name).decode("utf-8", "ignore")
                for value in re.findall(r"(?m)^[ \t]*\.?[\w.-]+[ \t]*=[ \t]*(\S.*)$", text):
                    yield clean(value, lang)


def add_pairs(package, lang, pairs):
    for source, target in pairs:
        targets = paragraphs(target, lang)
        if any(targets):
            sources = paragraphs(source, "en")
            package.add("en", sources)
            package.add(lang, targets)
            if len(sources) == len(targets) == 1 and 0 < len(sources[0]) <= 240:
                package.pairs.setdefault(lang, []).append((sources[0], targets[0]))


def licences(text):
    """Short names in a machine-readable copyright file, or the common licences that a free-form one names."""
    names = re.findall(r"(?m)^License:[ \t]*([A-Za-z0-9][\w.+-]*(?: (?:or|and|with|OR|AND|WITH) [\w.+-]+)*)[ \t]*$", text)
    if not names:
        known = (r"GFDL[-0-9.+]*|LGPL[-0-9.+]*|GPL[-0-9.+]*|MPL[-0-9.]*|Apache[- ]2\.0|BSD|MIT|PSF LICENSE|"
                 r"GNU (?:Lesser |Library )?General Public License|Creative Commons[^\n,.]*|PostgreSQL|public domain")
        names = re.findall(known, text)
    return sorted({name.strip(" -.") for name in names})


def wanted(name, path):
    if path.endswith(f"/doc/{name}/copyright"):
        return True
    if path.endswith(".mo"):
        return bool(LOCALE.search(path))
    if name in MANUALS:
        return bool(HTML_PAGE.search(path) and re.search(MANUALS[name], path))
    if LIBREOFFICE_HELP.match(name):
        return bool(HTML_PAGE.search(path))
    return bool(HELP_PAGE.search(path) or MESSAGES.match(path) or LANGPACK.search(path))


def read_files(deb, name):
    """The wanted files of a package, as a dictionary from path to bytes, without unpacking it to disk."""
    files = {}
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as unpack:
        with tarfile.open(fileobj=unpack.stdout, mode="r|") as tar:
            for member in tar:
                if member.isfile() and wanted(name, member.name):
                    files[member.name] = tar.extractfile(member).read()
    if unpack.returncode:
        raise RuntimeError(f"{deb}: dpkg-deb failed with {unpack.returncode}")
    return files


def add_messages(package, files):
    folders = {}
    for path in files:
        found = MESSAGES.match(path)
        if found:
            data = json.loads(files[path])
            folders.setdefault(found[1], {})[found[2]] = {k: v for k, v in data.items() if isinstance(v, str)}
    for _, by_lang in sorted(folders.items()):
        english = by_lang.pop("en", {})
        for lang, messages in sorted(by_lang.items()):
            add_pairs(package, lang, [(english.get(key, ""), text) for key, text in messages.items()])


def read_package(deb):
    fields = subprocess.run(["dpkg-deb", "-f", deb, "Package", "Version"], check=True, capture_output=True, text=True).stdout
    name, version = re.search(r"Package: (.*)", fields)[1], re.search(r"Version: (.*)", fields)[1]
    package = Package(name, version)
    files = read_files(deb, name)
    add_messages(package, files)
    budget = MANUAL_BYTES
    for path, data in sorted(files.items()):
        if path.endswith("/copyright"):
            package.licences = licences(data.decode("utf-8", "ignore"))
        elif path.endswith(".mo"):
            add_pairs(package, LOCALE.findall(path)[-1], read_mo(data))
        elif HELP_PAGE.search(path):
            lang = HELP_PAGE.search(path)[1].replace("C", "en")
            package.add(lang, html_lines(data.decode("utf-8", "ignore"), lang))
        elif LANGPACK.search(path):
            lang = LANGPACK.search(path)[1]
            package.add(lang, langpack_lines(data, lang))
        elif HTML_PAGE.search(path):
            lang = LIBREOFFICE_HELP.match(name)[1] if LIBREOFFICE_HELP.match(name) else "en"
            lines = html_lines(data.decode("utf-8", "ignore"), lang)
            if lang != "en" or budget > 0:
                budget -= sum(map(len, lines))
                package.add(lang, lines)
    return package
