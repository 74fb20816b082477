// Runs a WASI command under node, or only compiles it, and makes sure that Liftoff made its code.
//
// usage: node --allow-natives-syntax --liftoff-only --no-wasm-lazy-compilation run_in_node.cjs run FILE.wasm ARGUMENTS...
//        node (the same) run_in_node.cjs compile FILE.wasm        prints the milliseconds of processor time that it took
//
// Exit code 3: another compiler, or none yet, has made the code.
'use strict';
const { readFileSync } = require('node:fs');
const { WASI } = require('node:wasi');

function compile(bytes) {
  try {
    return new WebAssembly.Module(bytes);
  } catch (error) {
    console.error(error.message);
    process.exit(1);
  }
}

const [verb, file, ...rest] = process.argv.slice(2);
const bytes = readFileSync(file);
const begin = process.cpuUsage();
const compiled = compile(bytes);
const { user, system } = process.cpuUsage(begin);
if (verb === 'compile') {
  console.log((user + system) / 1e3);
} else {
  const wasi = new WASI({ version: 'preview1', args: [file, ...rest], returnOnExit: true });
  const instance = new WebAssembly.Instance(compiled, wasi.getImportObject());
  process.exitCode = wasi.start(instance);
  if (!%IsLiftoffFunction(instance.exports._start)) {
    console.error('this is not code of Liftoff');
    process.exitCode = 3;
  }
}
