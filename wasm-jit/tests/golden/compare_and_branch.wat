;; A comparison sets the flags, which its branch tests; also through eqz, for floats, and where the
;; value itself is used.
(module
  (func $signed (param i32 i32) (result i32)
    (if (result i32) (i32.lt_s (local.get 0) (local.get 1)) (then (i32.const 1)) (else (i32.const 2))))
  (func $negated (param i64) (result i32)
    (block (br_if 0 (i32.eqz (i64.gt_u (local.get 0) (i64.const 5)))) (return (i32.const 1)))
    (i32.const 0))
  (func $zero (param i32) (result i32)
    (if (i32.eqz (local.get 0)) (then (return (i32.const 1))))
    (i32.const 0))
  (func $equal (param f64 f64) (result i32)
    (if (result i32) (f64.eq (local.get 0) (local.get 1)) (then (i32.const 1)) (else (i32.const 2))))
  (func $less (param f32 f32) (result i32)
    (if (result i32) (f32.lt (local.get 0) (local.get 1)) (then (i32.const 1)) (else (i32.const 2))))
  (func $value (param i32 i32) (result i32) (i32.ge_u (local.get 0) (local.get 1)))
  (func $not_equal (param f64 f64) (result i32) (f64.ne (local.get 0) (local.get 1))))
