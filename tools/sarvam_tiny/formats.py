"""Readers of the places where packages keep human text: catalogues, help pages, resource packs.

Every reader yields (segment, english) pairs: `segment` is the text in the file's own language, `english` the string it
translates, or None where the format does not say. Nothing is cleaned here.
"""

import gzip
import html.parser
import io
import json
import re
import struct
import zipfile

BLOCKS = {"p", "li", "dd", "dt", "td", "th", "title", "para", "simpara", "h1", "h2", "h3", "h4", "h5", "div", "item",
          "section", "sect1", "sect2", "listitem", "entry", "caption", "tr", "ul", "ol", "body", "page", "term", "desc",
          "info", "table", "dl", "blockquote", "steps", "list", "note", "head", "br"}
SKIPPED = {"script", "style", "pre", "screen", "programlisting", "code-block", "credit", "license", "years", "email",
           "copyright", "legalnotice", "nav", "revhistory", "synopsis", "svg"}


class BlockText(html.parser.HTMLParser):
    """Text of block elements of HTML, DocBook or Mallard, code listings left out."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.blocks, self.text, self.skipping = [], [], []

    def flush(self):
        line = " ".join("".join(self.text).split())
        if line:
            self.blocks.append(line)
        self.text = []

    def handle_starttag(self, tag, attrs):
        tag = tag.rsplit(":", 1)[-1]
        if self.skipping or tag in SKIPPED:
            self.skipping.append(tag)
        elif tag in BLOCKS:
            self.flush()

    def handle_startendtag(self, tag, attrs):
        if tag in BLOCKS and not self.skipping:
            self.flush()

    def handle_endtag(self, tag):
        tag = tag.rsplit(":", 1)[-1]
        if tag in self.skipping:  # tolerates elements HTML leaves open
            del self.skipping[self.skipping.index(tag):]
        elif tag in BLOCKS and not self.skipping:
            self.flush()

    def handle_data(self, data):
        if not self.skipping:
            self.text.append(data)


def markup(data):
    parser = BlockText()
    parser.feed(data.decode("utf-8", "replace"))
    parser.flush()
    return [(block, None) for block in parser.blocks]


def mo(data):
    magic = struct.unpack_from("<I", data)[0]
    order = {0x950412DE: "<", 0xDE120495: ">"}.get(magic)
    if order is None:
        return []
    count, ids, strings = struct.unpack_from(order + "3I", data, 8)
    pairs = []
    for i in range(count):
        id_len, id_at = struct.unpack_from(order + "2I", data, ids + 8 * i)
        str_len, str_at = struct.unpack_from(order + "2I", data, strings + 8 * i)
        msgid = data[id_at:id_at + id_len].decode("utf-8", "replace")
        msgstr = data[str_at:str_at + str_len].decode("utf-8", "replace")
        if not msgid:
            continue
        msgid = msgid.split("\x04", 1)[-1]  # context before \x04, plurals behind \0
        english, texts = msgid.split("\0"), msgstr.split("\0")
        pairs.append((texts[0], english[0]))
        if len(english) > 1 and len(texts) > 1:
            pairs.append((texts[1], english[1]))
    return pairs


PO_STRING = re.compile(r'^(msgctxt|msgid_plural|msgid|msgstr(?:\[\d\])?)?\s*"(.*)"$')
ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}


def po(data):
    pairs, entry, key, fuzzy = [], {}, None, False
    for line in data.decode("utf-8", "replace").splitlines() + [""]:
        line = line.strip()
        if line.startswith("#,") and "fuzzy" in line:
            fuzzy = True
        match = PO_STRING.match(line)
        if match:
            key = match.group(1) or key
            if match.group(1) in ("msgid", "msgctxt") and any(k.startswith("msgstr") for k in entry):
                entry = {}
            text = re.sub(r"\\(.)", lambda m: ESCAPES.get(m.group(1), m.group(1)), match.group(2))
            entry[key] = entry.get(key, "") + text
        elif not line:
            text = entry.get("msgstr") or entry.get("msgstr[0]")
            if text and entry.get("msgid") and not fuzzy:
                pairs.append((text, entry["msgid"]))
            entry, key, fuzzy = {}, None, False
    return pairs


def flat_json(data, english):
    """MediaWiki and web extension messages: {key: text} or {key: {"message": text}}, English by the same key."""
    texts, source = ({}, {})
    for blob, into in ((data, texts), (english, source)):
        try:
            top = json.loads(blob) if blob else {}
        except ValueError:
            top = {}
        for key, value in top.items() if isinstance(top, dict) else []:
            value = value.get("message") if isinstance(value, dict) else value
            if isinstance(value, str):
                into[key] = value
    return [(text, source.get(key)) for key, text in texts.items()]


def pak_strings(data):
    """Resource id -> text of a Chromium pak, version 5 (header, 6-byte index entries, aliases, data)."""
    version, encoding, count, _ = struct.unpack_from("<IB3xHH", data)
    if version != 5 or encoding not in (1, 2):
        return {}
    entries = [struct.unpack_from("<HI", data, 12 + 6 * i) for i in range(count + 1)]
    strings = {}
    for (key, begin), (_, end) in zip(entries, entries[1:]):
        blob = data[begin:end]
        if blob[:2] == b"\x1f\x8b":
            blob = gzip.decompress(blob)
        strings[key] = blob.decode("utf-8" if encoding == 1 else "utf-16-le", "replace")
    return strings


def pak(data, english):
    source = pak_strings(english) if english else {}
    return [(text, source.get(key)) for key, text in pak_strings(data).items()]


def qm(data):
    """Compiled Qt catalogue: sections, the message section made of tagged UTF-16BE strings."""
    pairs, at = [], 16
    while at + 5 <= len(data):
        tag, length = struct.unpack_from(">BI", data, at)
        body, at = data[at + 5:at + 5 + length], at + 5 + length
        if tag != 0x69:
            continue
        pos, text, source = 0, None, None
        while pos < len(body):
            kind = body[pos]
            pos += 1
            if kind == 1:  # end of one message
                if text:
                    pairs.append((text, source))
                text, source = None, None
                continue
            if kind == 5:  # obsolete hash, four bytes
                pos += 4
                continue
            size = struct.unpack_from(">I", body, pos)[0] if pos + 4 <= len(body) else 0
            size = 0 if size == 0xFFFFFFFF else size
            chunk, pos = body[pos + 4:pos + 4 + size], pos + 4 + size
            if kind == 3 and text is None:
                text = chunk.decode("utf-16-be", "replace")
            elif kind == 6:
                source = chunk.decode("utf-8", "replace")
    return pairs


def language_pack(data):
    """Firefox .xpi: Fluent, properties and DTD files of one language."""
    pairs = []
    with zipfile.ZipFile(io.BytesIO(data)) as pack:
        for name in sorted(pack.namelist()):
            text = pack.read(name).decode("utf-8", "replace") if name.endswith((".ftl", ".properties", ".dtd")) else ""
            if name.endswith(".ftl"):
                text = re.sub(r"\n[ \t]+(?![ \t.*\[}])", " ", text)
                pairs += [(m, None) for m in re.findall(r"^\s*[.\w-]+ = (.+)$", text, re.M)]
            elif name.endswith(".properties"):
                pairs += [(m, None) for m in re.findall(r"^[^#\s=][^=\n]*=\s*(.+)$", text, re.M)]
            elif name.endswith(".dtd"):
                pairs += [(m, None) for m in re.findall(r"<!ENTITY\s+\S+\s+\"([^\"]+)\"", text)]
    return pairs


def pod(data):
    """Running paragraphs of Perl's POD; verbatim blocks start with a blank."""
    pairs = []
    for block in re.split(r"\n\s*\n", data.decode("utf-8", "replace")):
        if block[:1] not in ("=", " ", "\t", ""):
            text = " ".join(block.split())
            text = re.sub(r"[A-Z]<<+ (.*?) >>+", r"\1", text)
            for _ in range(3):
                text = re.sub(r"L<(?:([^<>|]*)\|)?([^<>]*)>", lambda m: m.group(1) or m.group(2), text)
                text = re.sub(r"[A-KM-Z]<([^<>]*)>", r"\1", text)
            pairs.append((text, None))
    return pairs


def wordnet(data):
    """Glosses of a WordNet data file: behind the bar, definition and quoted examples."""
    glosses = re.findall(r"\| (.+)$", data.decode("utf-8", "replace"), re.M)
    return [(gloss.strip(), None) for gloss in glosses]
