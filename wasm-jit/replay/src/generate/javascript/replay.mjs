// Replays a recorded run of program.wasm, whose host this file is: it calls the program as the recorded
// host did, and when the program calls it, does what events.bin says.
//
// usage: node replay.mjs [--check]
//
// --check compares the arguments and results of the program with the recorded ones. The bits of values
// that are not numbers (NaN) are not compared: JavaScript does not keep them.
//
// In other JavaScript engines: import { replay } from './replay.mjs', and call
// replay({ program, events, check }) with the bytes of the two files.
//
// Exit codes:
//   0   the run was repeated
//   1   it differs, or a file cannot be read: the reason is on stderr
//   2   it was repeated up to the end of the recording, which is before that of the program: the recording
//       or its process was ended; a line on stderr says so

/** What the program imports, in order. */
const IMPORTS = [];

/** The types of its memories. */
const MEMORIES = [];

/** The tags of exceptions that it does not have, and the types of their values. */
const OTHER_TAGS = [];

/** A module that imports functions that the program does not have, and exports them. */
const OTHER_FUNCTIONS = [];

/** What the program does is not what was recorded. */
export class Difference extends Error {
    /**
     * @param {number} event the number of the first event that differs, as `wasm-jit trace dump` prints it
     * @param {string} what
     */
    constructor(event, what) {
        super(`event ${event}: ${what}`);
        this.event = event;
    }
}

/** The recorded host failed here, as to exit, or the recording ends. */
class HostFailed extends Error {}

/** What is said of a recording that ends before the program. */
const INCOMPLETE = 'the recording ends here, before the program does';

/** Decodes events: src/event.rs has their encoding. */
class Events {
    constructor(bytes) {
        this.bytes = bytes;
        this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
        this.at = 0;
        this.number = -1;
    }

    get isAtEnd() {
        this.skipFunctions();
        return this.at === this.bytes.length;
    }

    /** An integer that a number can hold. */
    integer() {
        let value = 0;
        for (let factor = 1; ; factor *= 128) {
            const byte = this.bytes[this.at++];
            value += (byte & 127) * factor;
            if (byte < 128) return value;
        }
    }

    /** An integer of 64 bits. */
    long() {
        let value = 0n;
        for (let shift = 0n; ; shift += 7n) {
            const byte = this.bytes[this.at++];
            value |= BigInt(byte & 127) << shift;
            if (byte < 128) return value;
        }
    }

    maximum() {
        return this.bytes[this.at++] ? this.integer() : undefined;
    }

    /** A value: `{ value }`, of a function `{ func }`, its index, or of the host `{ host }`, its number. */
    value() {
        switch (this.bytes[this.at++]) {
            case 0: {
                const zigzag = this.integer();
                return { value: zigzag % 2 ? -(zigzag + 1) / 2 : zigzag / 2 };
            }
            case 1: {
                const zigzag = this.long();
                return { value: BigInt.asIntN(64, (zigzag >> 1n) ^ -(zigzag & 1n)) };
            }
            case 2:
                this.at += 4;
                return { value: this.view.getFloat32(this.at - 4, true) };
            case 3:
                this.at += 8;
                return { value: this.view.getFloat64(this.at - 8, true) };
            case 5: {
                const index = this.integer();
                return index ? { func: index - 1 } : { value: null };
            }
            case 6:
                return { value: null };
            case 7:
                return { host: this.integer() };
            case 8:
                return { value: null };
            case 9: {
                const zigzag = this.integer();
                return { value: zigzag % 2 ? -(zigzag + 1) / 2 : zigzag / 2 };
            }
            default:
                throw new Error('events.bin: an unknown type of value');
        }
    }

    values() {
        return Array.from({ length: this.integer() }, () => this.value());
    }

    types() {
        return Array.from({ length: this.integer() }, () => this.bytes[this.at++]);
    }

    /** Functions that the program does not have need nothing when they become known. */
    skipFunctions() {
        while (KINDS[this.bytes[this.at]] === 'function') this.read();
    }

    /** Whether the next event is of this kind. */
    is(kind) {
        this.skipFunctions();
        return KINDS[this.bytes[this.at]] === kind;
    }

    next() {
        this.skipFunctions();
        return this.read();
    }

    read() {
        this.number++;
        const kind = KINDS[this.bytes[this.at++]];
        switch (kind) {
            case 'start':
                return { kind, module: this.integer(), length: this.integer() };
            case 'enter':
            case 'call':
                return { kind, index: this.integer(), values: this.values() };
            case 'grow':
            case 'grow table':
                return { kind, index: this.integer(), by: this.integer() };
            case 'write': {
                const event = { kind, index: this.integer(), address: this.integer(), bytes: undefined };
                const length = this.integer();
                event.bytes = this.bytes.subarray(this.at, (this.at += length));
                return event;
            }
            case 'set global':
            case 'import global':
                return { kind, index: this.integer(), value: this.value() };
            case 'return':
            case 'leave':
                return { kind, values: this.values() };
            case 'set element':
                return { kind, index: this.integer(), element: this.integer(), value: this.value() };
            case 'import memory':
            case 'import table':
                return { kind, index: this.integer(), size: this.integer(), maximum: this.maximum() };
            case 'throw':
                return { kind, index: this.integer(), values: this.values() };
            case 'drop data':
            case 'drop elements':
                return { kind, index: this.integer() };
            case 'function':
                return { kind, index: this.integer(), parameters: this.types(), results: this.types() };
            case 'fail':
            case 'snapshot':
                return { kind };
            default:
                throw new Error('events.bin: an unknown kind of event');
        }
    }
}

/** The kinds of events, by their numbers. */
const KINDS = [
    'start', 'enter', 'call', 'grow', 'write', 'set global', 'return', 'leave', 'fail', 'grow table',
    'set element', 'import memory', 'import global', 'import table', 'snapshot', 'drop data', 'drop elements',
    'throw', 'function',
];

class Replay {
    constructor(events, check) {
        this.events = new Events(events);
        this.check = check;
        this.otherTags = new Map(OTHER_TAGS.map(([tag, parameters]) => [tag, new WebAssembly.Tag({ parameters })]));
        this.exports = undefined;
        this.others = {};
        this.hosts = new Map();
        this.isComplete = true;
    }

    /** The recording ends during a call by the host, perhaps within calls that it contains. */
    incomplete() {
        this.isComplete = false;
        return new HostFailed(INCOMPLETE);
    }

    /** Makes the functions that the program does not have. */
    async makeOthers() {
        if (OTHER_FUNCTIONS.length === 0) return;
        const module = await WebAssembly.compile(new Uint8Array(OTHER_FUNCTIONS));
        const numbers = WebAssembly.Module.imports(module).map(({ name }) => Number(name));
        const imports = Object.fromEntries(numbers.map((number) => [number, (...values) => this.called(number, values)]));
        this.others = (await WebAssembly.instantiate(module, { imports })).exports;
    }

    /** What the program imports, of the sizes and values that were recorded. */
    imports() {
        let functions = 0;
        const imports = IMPORTS.map(({ kind, type }) => {
            if (kind === 'tag') return new WebAssembly.Tag(type);
            if (kind !== 'function') return this.imported(kind, type, this.events.next());
            const number = functions++;
            return (...values) => this.called(number, values);
        });
        return { imports };
    }

    imported(kind, type, { size, maximum, value }) {
        if (kind === 'global') return new WebAssembly.Global(type, this.value(value));
        const length = (number) => (type.address === 'i64' ? BigInt(number) : number);
        const limits = { ...type, initial: length(size) };
        if (maximum !== undefined) limits.maximum = length(maximum);
        return kind === 'memory' ? new WebAssembly.Memory(limits) : new WebAssembly.Table(limits);
    }

    function(index) {
        return this.exports[`replay.func.${index}`] ?? this.others[index];
    }

    tag(index) {
        return this.otherTags.get(index) ?? this.exports[`replay.tag.${index}`];
    }

    value({ value, func, host }) {
        if (host !== undefined) return this.host(host);
        return func === undefined ? value : this.function(func);
    }

    /** The value of the host with this number, which the program can only pass along. */
    host(number) {
        if (!this.hosts.has(number)) this.hosts.set(number, { number });
        return this.hosts.get(number);
    }

    compare(number, found, expected) {
        const differs = (value, at) => !Object.is(found[at], this.value(value));
        if (this.check && (found.length !== expected.length || expected.some(differs))) {
            const show = (value) => {
                if (typeof value === 'function') return 'a function';
                return value !== null && typeof value === 'object' ? `host value ${value.number}` : value;
            };
            const list = (values) => values.map(show).join(' ');
            const recorded = expected.map((value) => this.value(value));
            throw new Difference(number, `found (${list(found)}) instead of (${list(recorded)})`);
        }
    }

    /** The program calls an imported function. */
    called(index, values) {
        const { events } = this;
        if (events.isAtEnd) throw new HostFailed();
        const event = events.next();
        if (event.kind !== 'call' || event.index !== index) {
            throw new Difference(events.number, `a call of function ${index}, of the host, instead of: ${event.kind}`);
        }
        this.compare(events.number, values, event.values);
        const { kind, index: tag, values: results } = this.act();
        if (kind !== 'return' && kind !== 'throw') throw new HostFailed();
        const all = results.map((result) => this.value(result));
        if (kind === 'throw') throw new WebAssembly.Exception(this.tag(tag), all);
        return all.length > 1 ? all : all[0];
    }

    /** Does what the host did, up to its next return, exception or failure. */
    act() {
        const { events } = this;
        while (!events.isAtEnd) {
            const event = events.next();
            switch (event.kind) {
                case 'return':
                case 'throw':
                case 'fail':
                    return event;
                case 'enter':
                    this.enter(event);
                    break;
                default:
                    this.change(event);
            }
        }
        return { kind: 'end' };
    }

    /** The host calls the program. */
    enter({ index, values }) {
        const { events } = this;
        const begin = events.number;
        let results;
        try {
            results = this.function(index)(...values.map((value) => this.value(value)));
        } catch (error) {
            if (error instanceof Difference) throw error;
            if (events.isAtEnd) throw this.incomplete();
            const isException = error instanceof WebAssembly.Exception;
            if (isException && events.is('throw')) return this.caught(error, events.next());
            if (!isException && events.is('fail')) {
                events.next();
                throw new HostFailed();
            }
            throw new Difference(events.number + 1, `the call of event ${begin} failed: ${error}`);
        }
        if (events.isAtEnd) throw this.incomplete();
        const event = events.next();
        if (event.kind !== 'leave') {
            throw new Difference(events.number, `the call of event ${begin} returned instead of: ${event.kind}`);
        }
        const all = results === undefined ? [] : Array.isArray(results) ? results : [results];
        this.compare(events.number, all, event.values);
    }

    /** The host has got an exception. */
    caught(exception, { index, values }) {
        const tag = this.tag(index);
        if (!exception.is(tag)) throw new Difference(this.events.number, 'an exception of another tag');
        this.compare(this.events.number, values.map((_, at) => exception.getArg(tag, at)), values);
    }

    change({ kind, index, by, address, bytes, element, value }) {
        const { exports } = this;
        switch (kind) {
            case 'grow': {
                const number = MEMORIES[index].address === 'i64' ? BigInt(by) : by;
                exports[`replay.memory.${index}`].grow(number);
                break;
            }
            case 'write':
                new Uint8Array(exports[`replay.memory.${index}`].buffer).set(bytes, address);
                break;
            case 'set global':
                exports[`replay.global.${index}`].value = this.value(value);
                break;
            case 'grow table':
                exports[`replay.table.${index}`].grow(by, null);
                break;
            case 'set element':
                exports[`replay.table.${index}`].set(element, this.value(value));
                break;
            case 'drop data':
                exports[`replay.data.${index}`]();
                break;
            case 'drop elements':
                exports[`replay.elements.${index}`]();
                break;
            case 'snapshot':
                break;
            default:
                throw new Error(`events.bin: ${kind} is not possible here`);
        }
    }

    async run(program) {
        this.events.next();
        await this.makeOthers();
        const { instance } = await WebAssembly.instantiate(program, this.imports());
        this.exports = instance.exports;
        try {
            this.act();
        } catch (error) {
            if (!(error instanceof HostFailed)) throw error;
        }
        if (!this.events.isAtEnd) throw new Difference(this.events.number + 1, 'the run ended before this event');
    }
}

/**
 * Repeats the run.
 *
 * @param {{ program: Uint8Array, events: Uint8Array, check?: boolean }} files
 * @returns {Promise<{ isComplete: boolean }>} whether the recording has the end of the run
 * @throws {Difference} if the program does something else
 */
export async function replay({ program, events, check = false }) {
    const replay = new Replay(events, check);
    await replay.run(program);
    return { isComplete: replay.isComplete };
}

if (typeof process !== 'undefined' && process.argv[1] !== undefined) {
    const { pathToFileURL } = await import('node:url');
    const { realpathSync } = await import('node:fs');
    if (import.meta.url === pathToFileURL(realpathSync(process.argv[1])).href) {
        const { readFile } = await import('node:fs/promises');
        const read = (name) => readFile(new URL(name, import.meta.url));
        try {
            const [program, events] = await Promise.all([read('program.wasm'), read('events.bin')]);
            const { isComplete } = await replay({ program, events, check: process.argv.includes('--check') });
            if (!isComplete) {
                console.error(`replay: ${INCOMPLETE}`);
                process.exitCode = 2;
            }
        } catch (error) {
            console.error(`replay: ${error instanceof Difference ? error.message : error.stack}`);
            process.exitCode = 1;
        }
    }
}
