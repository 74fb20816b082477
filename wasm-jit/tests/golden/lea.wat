;; Sums with constants, shifted operands and three parts.
(module
  (func $three (param i32 i32) (result i32)
    (i32.add (i32.add (local.get 0) (local.get 1)) (i32.const 12)))
  (func $scaled (param i32 i32) (result i32)
    (i32.add (local.get 0) (i32.shl (local.get 1) (i32.const 3))))
  (func $wide (param i64 i64) (result i64)
    (i64.add (local.get 0) (i64.shl (local.get 1) (i64.const 2))))
  (func $difference (param i32) (result i32) (i32.sub (local.get 0) (i32.const 5)))
  (func $times_three (param i32) (result i32) (i32.mul (local.get 0) (i32.const 3)))
  (func $times_hundred (param i64) (result i64) (i64.mul (local.get 0) (i64.const 100)))
  (func $times_wide (param i64) (result i64) (i64.mul (local.get 0) (i64.const 0x9e3779b185ebca87)))
  (func $times_eight (param i32) (result i32) (i32.mul (local.get 0) (i32.const 8))))
