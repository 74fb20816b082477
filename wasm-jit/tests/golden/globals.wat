;; Globals of the instance and imported ones, and references.
(module
  (import "host" "limit" (global $limit (mut i64)))
  (global $pi f64 (f64.const 3.14159))
  (global $count (mut i32) (i32.const 0))
  (elem declare func $read)
  (func $read (result f64) (f64.mul (global.get $pi) (global.get $pi)))
  (func $imported (param i64) (result i64)
    (global.set $limit (i64.add (global.get $limit) (local.get 0)))
    (global.get $limit))
  (func $reference (result funcref) (ref.func $read))
  (func $is_null (param funcref) (result i32) (ref.is_null (local.get 0)))
  (func $null (result externref) (ref.null extern)))
