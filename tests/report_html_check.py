#!/usr/bin/env python3
"""Checks a report without opening it: well-formed, complete in itself, reachable by everyone.

usage: report_html_check.py FILE...      exit code 0: fine, 1: findings (one line each), 2: usage
"""

import re
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source",
        "track", "wbr"}
# Elements that fetch, run or embed something; a report needs none of them.
FORBIDDEN = {"link", "iframe", "object", "embed", "base", "form", "audio", "video",
             "source", "img", "image", "use", "foreignObject", "foreignobject"}
ADDRESS = {"href", "src", "srcset", "xlink:href", "action", "formaction", "data", "poster",
           "background", "ping"}
REFERENCE = {"aria-labelledby", "aria-describedby", "aria-controls", "for", "headers"}


class Page(HTMLParser):
    """Collects what the rules are about, as a browser would read it."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.findings, self.open, self.ids, self.references = [], [], {}, []
        self.counts, self.styles, self.text_of = {}, [], {}
        self.language = None

    def handle_starttag(self, tag, attributes):
        self.element(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.element(tag, attributes)

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if not self.open or self.open[-1] != tag:
            self.findings.append(f"</{tag}> closes <{self.open[-1] if self.open else 'nothing'}>")
            return
        self.open.pop()

    def handle_data(self, data):
        where = self.open[-1] if self.open else ""
        if where == "style":
            self.styles.append(data)
        self.text_of[where] = self.text_of.get(where, "") + data

    def element(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag in FORBIDDEN:
            self.findings.append(f"<{tag}> does not belong in a report")
        if tag == "script" and (attributes or self.counts[tag] > 1):
            self.findings.append("<script> that is not the page's own does not belong in a report")
        if tag == "html":
            self.language = dict(attributes).get("lang")
        if tag == "svg" and dict(attributes).get("role") != "img":
            self.findings.append("a picture without role=img")
        if tag == "th" and "scope" not in dict(attributes):
            self.findings.append("a table head without scope")
        for name, value in attributes:
            value = value or ""
            if name == "id":
                if value in self.ids:
                    self.findings.append(f"id {value} stands twice")
                self.ids[value] = tag
            elif name in ADDRESS:
                if not value.startswith("#"):
                    self.findings.append(f"<{tag} {name}={value!r}> leads out of the page")
                else:
                    self.references.append((tag, name, value[1:]))
            elif name in REFERENCE:
                self.references += [(tag, name, one) for one in value.split()]
            elif name == "style":
                self.styles.append(value)
            elif name.startswith("on"):
                self.findings.append(f"<{tag} {name}> runs a script")


def check(text):
    """A list of findings, empty when all is well."""
    try:
        ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        return [f"not well-formed: {error}"]
    page = Page()
    page.feed(text)
    page.close()
    findings = page.findings
    if page.open:
        findings.append(f"never closed: {', '.join(page.open)}")
    if not text.lstrip().lower().startswith("<!doctype html>"):
        findings.append("no <!DOCTYPE html> at the start")
    if not page.language:
        findings.append("no language")
    for name in ("h1", "title", "main"):
        if name == "title":
            if not page.text_of.get("title", "").strip():
                findings.append("an empty title")
        elif page.counts.get(name, 0) != 1:
            findings.append(f"{page.counts.get(name, 0)} <{name}>, expected one")
    for tag, name, target in page.references:
        if target not in page.ids:
            findings.append(f"<{tag} {name}> refers to {target}, which is not there")
    for style in page.styles:
        if "@import" in style or re.search(r"url\((?!\s*['\"]?#)", style):
            findings.append("a style that fetches something")
    return findings


def main(paths):
    if not paths:
        print(__doc__, file=sys.stderr)
        return 2
    bad = False
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for finding in check(file.read()):
                bad = True
                print(f"{path}: {finding}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
