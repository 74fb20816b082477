;; Greets somebody, with strings of JavaScript.
(module
  (import "wasm:js-string" "concat"
    (func $concat (param externref externref) (result (ref extern))))
  (import "'" "Hello, " (global $hello (ref extern)))
  (import "'" "!" (global $end (ref extern)))
  (func (export "greet") (param $name externref) (result (ref extern))
    (call $concat
      (call $concat (global.get $hello) (local.get $name))
      (global.get $end))))
