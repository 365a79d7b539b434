"""Turns the markup of the corpora into plain text."""

from __future__ import annotations

import re

DOCUMENT_SEPARATOR = "\n\f\n"
SHORTEST_DOCUMENT = 500  # characters; shorter pages are lists of links

# Directives of the Python documentation whose arguments are worth reading, as a heading.
_NAMED = re.compile(
    r"^(\s*)\.\. (?:\w+:)?(?:function|method|class|classmethod|staticmethod|attribute|data"
    r"|exception|decorator|describe|opcode|option|cmdoption|macro|type|member|var)::[ ]?(.*)$"
)
_ADMONITION = re.compile(r"^(\s*)\.\. (note|warning|tip|seealso|caution|impl-detail)::[ ]?(.*)$")
_VERSION = re.compile(r"^(\s*)\.\. (versionadded|versionchanged|deprecated)::[ ]?(\S*)(.*)$")
_DROPPED = re.compile(r"^\s*(\.\.( .*)?|:\w[\w -]*:( .*)?|-{3,}|={3,}|~{3,}|\*{3,}|\^{3,}|\"{3,})$")
_ROLE = re.compile(r":[\w:+-]+:`[!~]?([^`<]*?)\s*(?:<[^`]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`]*>`__?")
_BLANK_LINES = re.compile(r"\n{3,}")


def clean_documentation(source: str) -> str:
    """Removes the reStructuredText markup of a page of the Python documentation."""
    lines = []
    for line in source.splitlines():
        if named := _NAMED.match(line):
            line = named[1] + named[2]
        elif admonition := _ADMONITION.match(line):
            line = f"{admonition[1]}{admonition[2].capitalize()}: {admonition[3]}".rstrip()
        elif version := _VERSION.match(line):
            word = {"versionadded": "New in", "versionchanged": "Changed in"}.get(version[2])
            line = f"{version[1]}{word or 'Deprecated since'} version {version[3]}.{version[4]}"
        elif _DROPPED.match(line):
            continue
        line = _LINK.sub(r"\1", _ROLE.sub(r"\1", line)).replace("``", "")
        lines.append(re.sub(r"::$", ":", line.replace("|release|", "3")).rstrip())
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()


def clean_brown(source: str) -> str:
    """Removes the part-of-speech tags of a Brown corpus file and sets spaces as usual."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", source):
        words = [token.rsplit("/", 1)[0] for token in paragraph.split()]
        text = " ".join(words).replace("`` ", '"').replace(" ''", '"')
        text = re.sub(r"\s+([.,;:?!)\]])", r"\1", text)
        text = re.sub(r"([(\[])\s+", r"\1", text)
        text = re.sub(r"([.,;:?!])(?:\s*\1)+", r"\1", text)  # the corpus doubles some marks
        if text:
            paragraphs.append(text)
    return "\n\n".join(paragraphs)


def split_debian_reference(source: str) -> list[str]:
    """Splits the Debian Reference into its chapters and leaves out the table of contents."""
    source = source.replace("\N{NO-BREAK SPACE}", " ")
    starts = [match.start() for match in re.finditer(r"^(?:Chapter|Appendix) \w+\. ", source, re.M)]
    chapters = [source[a:b] for a, b in zip(starts, [*starts[1:], len(source)], strict=True)]
    return [_BLANK_LINES.sub("\n\n", chapter).strip() for chapter in chapters]


def join_documents(documents: list[str]) -> str:
    """Joins documents to one text, separated by a line with a form feed."""
    kept = [text.replace("\f", "\n") for text in documents if len(text) >= SHORTEST_DOCUMENT]
    return DOCUMENT_SEPARATOR.join(kept) + "\n"
