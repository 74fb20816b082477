"""Runs a part of the standard library, and prints what is the same in every run."""

import ast
import base64
import collections
import csv
import dataclasses
import decimal
import difflib
import fractions
import functools
import hashlib
import heapq
import io
import itertools
import json
import os
import random
import re
import statistics
import string
import struct
import sys
import textwrap
import unicodedata
import zlib

folder = sys.argv[1]
numbers = random.Random(5)

# Numbers: large integers, decimals, fractions, floats.
print(functools.reduce(lambda product, n: product * n, range(1, 200)) % (10**61 + 7))
print(pow(3, 10**40, 10**30 + 57), (2**4000).bit_count(), str(7**1500)[:40])
decimal.getcontext().prec = 50
print(decimal.Decimal(2).sqrt(), decimal.Decimal(1).exp())
print(sum((fractions.Fraction(1, n) for n in range(1, 60)), fractions.Fraction()))
sample = [numbers.gauss(10, 3) for _ in range(2000)]
print(repr(statistics.fmean(sample)), repr(statistics.pstdev(sample)), [round(q, 6) for q in statistics.quantiles(sample)])
print(float("0.1") + 0.2, 1e308 * 10, -0.0, float.fromhex("0x1.8p-1074"), repr(5e-324), 2.5e-8 / 3)

# Text.
text = " ".join("".join(numbers.choices(string.ascii_lowercase, k=numbers.randint(2, 9))) for _ in range(3000))
words = collections.Counter(re.findall(r"\b[aeiou]\w*?([bcd])\w*\b", text))
print(sorted(words.items()), len(re.sub(r"(\w)(\w)\b", r"\2\1", text)))
print(textwrap.shorten(text, 60), unicodedata.normalize("NFKD", "Ångström ﬁ ①"), "ẞ".casefold())
print(list(difflib.unified_diff(text.split()[:9], text.split()[1:10], lineterm="", n=0)))

# Data.
data = json.dumps({"text": text, "nested": [[1, 2.5, None, True]] * 40, "π": "∞"}, sort_keys=True, ensure_ascii=False)
assert json.loads(data)["π"] == "∞"
packed = zlib.compress(data.encode(), 9)
assert zlib.decompress(packed).decode() == data
print(len(data), zlib.crc32(data.encode()), hashlib.sha256(data.encode()).hexdigest(), hashlib.md5(packed).hexdigest())
print(base64.b85encode(struct.pack("<hIqdf?", -2, 3, -(2**60), 1 / 3, 1 / 3, True)))
rows = io.StringIO()
csv.writer(rows).writerows(itertools.islice(itertools.permutations(["a,b", 'c"d', "e\nf", ""]), 5))
print(hashlib.sha1(rows.getvalue().encode()).hexdigest())


@dataclasses.dataclass(order=True)
class Task:
    priority: int
    name: str = dataclasses.field(compare=False)


heap = []
for n in range(500):
    heapq.heappush(heap, Task(numbers.randrange(10**6), f"task {n}"))
print([heapq.heappop(heap).name for _ in range(5)])


# Exceptions, generators, closures, deep recursion.
def walk(tree):
    for child in ast.iter_child_nodes(tree):
        yield type(child).__name__
        yield from walk(child)


with open(__file__) as source:
    print(collections.Counter(walk(ast.parse(source.read()))).most_common(5))
caught = collections.Counter()
for action in (lambda: 1 // 0, lambda: [][1], lambda: {}["x"], lambda: int("x"), lambda: None.x, lambda: open("/none")):
    try:
        action()
    except Exception as error:
        caught[type(error).__name__] += 1
print(sorted(caught))


def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)


print(depth(400))
try:
    depth(10**6)
except RecursionError as error:
    print("RecursionError")

# Files.
os.makedirs(f"{folder}/a/b", exist_ok=True)
for n in range(20):
    with open(f"{folder}/a/b/{n:02}.txt", "w") as file:
        file.write(f"{n}\n" * n)
os.rename(f"{folder}/a/b/03.txt", f"{folder}/a/three.txt")
os.remove(f"{folder}/a/b/07.txt")
for path, folders, files in sorted(os.walk(folder)):
    print(path, sorted(folders), sum(os.path.getsize(f"{path}/{name}") for name in files), len(files))
with open(f"{folder}/a/three.txt", "r+b") as file:
    file.seek(2)
    file.write(b"X")
    file.truncate(5)
    file.seek(0)
    print(file.read(), os.stat(file.name).st_size)


# A sieve, a matrix product and the queens: the interpreter's loop.
def queens(n, row=0, columns=0, left=0, right=0):
    if row == n:
        return 1
    free, count = ~(columns | left | right) & ((1 << n) - 1), 0
    while free:
        bit = free & -free
        free ^= bit
        count += queens(n, row + 1, columns | bit, (left | bit) << 1, (right | bit) >> 1)
    return count


sieve = bytearray([1]) * 200000
for n in range(2, 450):
    if sieve[n]:
        sieve[n * n :: n] = bytes(len(range(n * n, len(sieve), n)))
matrix = [[numbers.random() for _ in range(40)] for _ in range(40)]
product = [[sum(map(lambda a, b: a * b, row, column)) for column in zip(*matrix)] for row in matrix]
print(queens(7), sum(sieve) - 2, repr(sum(map(sum, product))))
