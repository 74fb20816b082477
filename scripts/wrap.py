#!/usr/bin/env python3
"""Wraps comments and prose at 100 columns.

usage: scripts/wrap.py [--check] [FILE OR FOLDER...]        default: those listed in CHECKED

A paragraph of a comment (Rust, C, shell, Python, TOML) or of Markdown that has a line of more than 100
characters is filled again; all others stay as they are. Code, fenced and indented blocks, tables, columns, headings, rules and
what cannot be divided (a long name or address) stay too. --check prints what would change, and exits with 1.
"""

import re
import subprocess
import sys
from pathlib import Path

WIDTH = 100
ROOT = Path(__file__).resolve().parent.parent

# The comment marker of a line that contains only a comment, by the end of the file's name.
PREFIXES = {
    ".rs": r"//[/!]?",
    ".c": r" \*(?!/)|//",
    ".h": r" \*(?!/)|//",
    ".cpp": r" \*(?!/)|//",
    ".sh": r"#(?!!)",
    ".py": r"#(?!!)",
    ".toml": r"#",
    "/run": r"#(?!!)",
}
# Files and folders that are checked.
CHECKED = (
    ".ci", ".gitignore", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "Cargo.toml", "README.md",
    "SECURITY.md", "deny.toml", "docs", "rust-toolchain.toml", "scripts", "wordpatch", "callpatch", "fastinst",
    "profiler", "tmax-probe", "wasm-jit", "benches", "tests", "examples",
)

ITEM = re.compile(r"(?:[*-]|\d+\.) +")
FENCE = re.compile(r"```(\w*)")


def is_fixed(text):
    """Whether the line is not changed, and ends a paragraph."""
    if not text or text.startswith(("|", "#", "    ", "<", "\t", "---")) or re.match(r"\[[^]]*\]: ", text):
        return True
    # Columns.
    return re.search(r"\S {3,}\S", text) is not None


def fill(words, first, rest):
    """Fills the words into lines of at most WIDTH characters, with the prefix `first`, then `rest`."""
    lines, line, is_empty = [], first, True
    for word in words:
        if not is_empty and len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line, is_empty = rest, True
        line += word if is_empty else " " + word
        is_empty = False
    return lines + [line]


def words_of(text):
    """The units that are not divided by line breaks: words, code in backquotes, and texts of links."""
    parts, inside = [], False
    for word in text.split():
        if inside:
            parts[-1] += " " + word
        else:
            parts.append(word)
        if word.count("`") % 2:
            inside = not inside
    # No line may start like an item or a heading of Markdown.
    joined = []
    for part in parts:
        if joined and (ITEM.match(part + " ") or part.startswith(("#", "|", ">"))):
            joined[-1] += " " + part
        else:
            joined.append(part)
    return joined


def wrapped(lines):
    """Wraps prose: (front, text) for each line, where the front is the comment marker with its indentation."""
    out, at, fence = [], 0, False
    while at < len(lines):
        front, text = lines[at]
        if text.lstrip().startswith("```"):
            fence = not fence
        stripped = text.lstrip(" ")
        indent = len(text) - len(stripped)
        marker = ITEM.match(stripped)
        # The lines of an item may be indented like a block.
        if fence or text.lstrip().startswith("```") or is_fixed(text) and not (marker and indent <= 3):
            out.append(front + text)
            at += 1
            continue
        hanging = " " * (indent + (len(marker.group()) if marker else 0))
        head = " " * indent + (marker.group() if marker else "")
        paragraph = [stripped[len(marker.group()) :] if marker else stripped]
        end = at + 1
        while end < len(lines):
            next_front, next_text = lines[end]
            body = next_text.lstrip(" ")
            if (
                next_front != front
                or not body
                or ITEM.match(body)
                or body.startswith("```")
                or is_fixed(body)
                or len(next_text) - len(body) != len(hanging)
            ):
                break
            paragraph.append(body)
            end += 1
        shown = [lines[i][0] + lines[i][1] for i in range(at, end)]
        # Two spaces at the end of a line are a line break.
        if max(map(len, shown)) > WIDTH and not any(line.endswith("  ") for line in shown):
            out += fill(words_of(" ".join(paragraph)), front + head, front + hanging)
        else:
            out += shown
        at = end
    return out


def in_code(text, prefix):
    """Wraps comments in source that are alone on their lines."""
    pattern = re.compile(rf"^(\s*)({prefix})( |$)(.*)$")
    out, block = [], []

    def flush():
        out.extend(wrapped(block))
        block.clear()

    for line in text.split("\n"):
        match = pattern.match(line)
        if match:
            indent, sign, space, rest = match.groups()
            # An empty line belongs to the comment: a fenced block may contain some.
            front = indent + sign + (space if rest else "")
            if block and block[-1][0].rstrip() != front.rstrip():
                flush()
            block.append((front, rest))
        else:
            flush()
            out.append(line)
    flush()
    return "\n".join(out)


def fenced(text):
    """Wraps Markdown: prose, and source in fenced blocks, as in the file from which it is copied."""
    out, block, language = [], [], None
    for line in text.split("\n"):
        match = FENCE.match(line)
        if match and language is None:
            out += wrapped([("", prose) for prose in block])
            out.append(line)
            block, language = [], match.group(1)
        elif match:
            suffix = {"rust": ".rs", "c": ".c"}.get(language)
            inside = "\n".join(block)
            out += (in_code(inside, PREFIXES[suffix]) if suffix else inside).split("\n") if block else []
            out.append(line)
            block, language = [], None
        else:
            block.append(line)
    out += block if language is not None else wrapped([("", prose) for prose in block])
    return "\n".join(out)


def wrap(path, text):
    if path.suffix == ".md":
        return fenced(text)
    for end, prefix in PREFIXES.items():
        if str(path).endswith(end):
            return in_code(text, prefix)
    return text


def main():
    arguments = sys.argv[1:]
    if "--help" in arguments or "-h" in arguments:
        print(__doc__)
        return 0
    is_check = "--check" in arguments
    chosen = [argument for argument in arguments if argument != "--check"]
    base = Path.cwd() if chosen else ROOT
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *(chosen or CHECKED)],
        cwd=base, capture_output=True, check=True, text=True,
    ).stdout.split("\0")
    changed = 0
    for name in filter(None, listed):
        path = base / name
        if path.is_symlink() or not path.is_file():
            continue
        if path.suffix != ".md" and not any(str(path).endswith(end) for end in PREFIXES):
            continue
        before = path.read_text()
        after = wrap(path, before)
        if after != before:
            changed += 1
            print(f"{name}: {'to be wrapped' if is_check else 'wrapped'}")
            if not is_check:
                path.write_text(after)
    return 1 if is_check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
