;; 128-bit arithmetic.
(module
  (func $sum (param i64 i64 i64 i64) (result i64 i64)
    (i64.add128 (local.get 0) (local.get 1) (local.get 2) (local.get 3)))
  ;; The high half of one operand is a constant.
  (func $increment (param i64 i64) (result i64 i64)
    (i64.add128 (local.get 0) (local.get 1) (i64.const 1) (i64.const 0)))
  (func $difference (param i64 i64) (result i64)
    (i64.sub128 (local.get 0) (local.get 1) (i64.load (i32.const 8)) (i64.load (i32.const 16)))
    (local.set 1)
    (drop)
    (local.get 1))
  ;; The product of two numbers is added to a sum in two locals.
  (func $multiply_add (param $low i64) (param $high i64) (param $a i64) (param $b i64) (result i64)
    (loop $again
      (i64.add128 (local.get $low) (local.get $high)
        (i64.mul_wide_u (local.get $a) (local.get $b)))
      (local.set $high)
      (local.set $low)
      (br_if $again (i64.ne (local.tee $a (i64.sub (local.get $a) (i64.const 1))) (i64.const 0))))
    (i64.add (local.get $low) (local.get $high)))
  (func $signed (param i64) (result i64 i64) (i64.mul_wide_s (local.get 0) (i64.const -7)))
  (memory 1))
