;; Division by constants multiplies or shifts; division by variables checks the divisor.
(module
  (func $by_ten (param i32) (result i32) (i32.div_u (local.get 0) (i32.const 10)))
  (func $by_seven (param i32) (result i32) (i32.div_u (local.get 0) (i32.const 7)))
  (func $signed_by_three (param i32) (result i32) (i32.div_s (local.get 0) (i32.const 3)))
  (func $signed_by_eight (param i32) (result i32) (i32.div_s (local.get 0) (i32.const 8)))
  (func $signed_by_minus_one (param i32) (result i32) (i32.div_s (local.get 0) (i32.const -1)))
  (func $by_zero (param i32) (result i32) (i32.div_u (local.get 0) (i32.const 0)))
  (func $remainder_of_ten (param i32) (result i32) (i32.rem_u (local.get 0) (i32.const 10)))
  (func $remainder_of_eight (param i32) (result i32) (i32.rem_s (local.get 0) (i32.const 8)))
  (func $wide_by_ten (param i64) (result i64) (i64.div_u (local.get 0) (i64.const 10)))
  (func $wide_signed_by_hundred (param i64) (result i64) (i64.div_s (local.get 0) (i64.const 100)))
  (func $unknown (param i32 i32) (result i32) (i32.div_s (local.get 0) (local.get 1)))
  (func $unknown_remainder (param i64 i64) (result i64) (i64.rem_s (local.get 0) (local.get 1))))
