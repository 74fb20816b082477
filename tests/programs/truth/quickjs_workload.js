// What an interpreter of JavaScript does: objects, closures, strings, regular expressions, collections, JSON, big integers, sorting,
// generators, exceptions. `size` comes from outside.
let seed = 1;
function random() {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return seed >>> 8;
}

class Shape {
    constructor(side) { this.side = side; }
    area() { return this.side * this.side; }
}
class Circle extends Shape {
    area() { return Math.floor(3 * super.area()); }
}

function shapes(n) {
    let sum = 0;
    for (let i = 0; i < n; i++) {
        const shape = i % 3 ? new Shape(i % 17) : new Circle(i % 13);
        sum += shape.area();
    }
    return sum;
}

function text(n) {
    const words = [];
    for (let i = 0; i < n; i++) words.push((random() % 5000).toString(36) + (random() % 7 ? "" : "@host.org"));
    const joined = words.join(" ");
    const mails = joined.match(/[a-z0-9]+@host\.org/g) || [];
    const upper = joined.replace(/\b([a-z])(\w*)/g, (all, first, rest) => first.toUpperCase() + rest);
    return mails.length + upper.split(" ").filter(word => /^[A-Z]/.test(word)).length;
}

function json(n) {
    const rows = [];
    for (let i = 0; i < n; i++)
        rows.push({ id: i, name: "row " + i, tags: ["a" + (i % 7), "b" + (i % 11)], price: i * 1.25, nested: { even: i % 2 === 0 } });
    const again = JSON.parse(JSON.stringify(rows));
    return again.filter(row => row.nested.even).reduce((sum, row) => sum + row.price, 0);
}

function collections(n) {
    const counts = new Map(), seen = new Set();
    for (let i = 0; i < n; i++) {
        const key = random() % 1000;
        counts.set(key, (counts.get(key) || 0) + 1);
        seen.add(key * 7 % 501);
    }
    return [...counts.entries()].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, 5).join(";") + "/" + seen.size;
}

function big(n) {
    let a = 1n;
    for (let i = 1; i <= n; i++) a = a * BigInt(i) % (2n ** 521n - 1n);
    return a.toString(16).slice(0, 20);
}

function* naturals(end) {
    for (let i = 0; i < end; i++) yield i;
}

function generators(n) {
    let sum = 0;
    for (const i of naturals(n)) {
        try {
            if (i % 97 === 0) throw new RangeError("at " + i);
            sum += i & 7;
        } catch (error) {
            sum += error.message.length;
        }
    }
    return sum;
}

function sieve(n) {
    const composite = new Uint8Array(n);
    let primes = 0;
    for (let i = 2; i < n; i++) {
        if (composite[i]) continue;
        primes++;
        for (let j = i * i; j < n; j += i) composite[j] = 1;
    }
    return primes;
}

function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

for (let round = 0; round < size; round++) {
    print("round", round, shapes(60000), text(12000), json(4000));
    print(collections(60000), big(4000), generators(40000), sieve(200000), fib(22));
}
