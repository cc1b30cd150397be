"""The units of translation memories (TMX).

Files are read unit by unit, so that they may be larger than the memory. Expat refuses
entities that expand to much more than the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from keras_transformer.text.lines import unpacked
from keras_transformer.text.table_files import chosen

# Bytes that are parsed at once, where a line does not end before.
_CHUNK = 1 << 16
# Elements that hold the codes of a format, and no text.
_CODES = {"bpt", "ept", "it", "ph", "ut"}
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


def unit_rows(path: Path, keys: Sequence) -> tuple[Callable[[], Iterator], str]:
    """Reads two languages of a file; one of two languages needs no keys.

    Returns a function that yields numbered rows, and what is wrong with a row that
    has not two fields.
    """
    # A unit whose translation is missing does not say which languages there are.
    found = (unit[1:] for unit in _units(path) if len(unit[2]) > 1)
    first, sides = next(found, ("", {}))
    names = sorted(sides, key=lambda x: not (_is(first, x) or _is(x, first)))
    if all(keys):
        keys = [_code(key) for key in keys]
        keys = [next((x for x in names if _is(key, x)), key) for key in keys]
    names = chosen(names, keys, str(path)) if names else ["a source", "a translation"]

    def rows():
        for line, _, sides in _units(path):
            yield line, [sides[name] for name in names if name in sides]

    return rows, f"a unit without {' or '.join(names)}"


def _is(name, language):
    """Whether a language is the named one, such as "en-US" for "en"."""
    return f"{language}-".startswith(f"{name}-")


def _code(language):
    return language.lower().replace("_", "-")


def _units(path):
    """Yields the line, the source language, and the text of each language of a unit."""
    head = {}  # The attributes that name the languages.
    opened = []  # The elements that have begun, and their lines.
    for line, event, element in _elements(path):
        tag = _tag(element)
        if event == "start":
            opened.append((element, line))
            if tag == "header":
                head = element.attrib
            continue
        _, line = opened.pop()
        if tag != "tu":
            continue
        sides = {}
        for part in element:
            text = part.find("{*}seg")
            language = part.get(_LANGUAGE) or part.get("lang")
            if language and text is not None:
                sides.setdefault(_code(language), _text(text))
        yield line, _code(head.get("srclang") or next(iter(sides), "")), sides
        for parent, _ in opened[-1:]:
            parent.clear()  # What has been read is forgotten.


def _elements(path):
    """Yields the line, the event and the element wherever one begins or ends."""
    parser = ElementTree.XMLPullParser(["start", "end"])
    line = 1
    with unpacked(path) as stream:
        try:
            while content := stream.readline(_CHUNK):
                parser.feed(content)
                for event, element in parser.read_events():
                    yield line, event, element
                line += content.endswith(b"\n")
            parser.close()
        except ElementTree.ParseError as error:
            raise ValueError(
                f"{path}:{error.position[0]}: not valid XML: {error}"
            ) from error


def _tag(element):
    return element.tag.rpartition("}")[2]


def _text(element):
    """Returns the text of an element without the codes of its format."""
    for code in [part for part in element.iter() if _tag(part) in _CODES]:
        tail = code.tail
        code.clear()
        code.tail = tail
    return "".join(element.itertext())
