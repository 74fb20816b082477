;; Select by a comparison, of integers and of floats, with a constant condition.
(module
  (func $max (param i32 i32) (result i32)
    (select (local.get 0) (local.get 1) (i32.gt_s (local.get 0) (local.get 1))))
  (func $constants (param i32) (result i32) (select (i32.const 5) (i32.const 9) (local.get 0)))
  (func $wide (param i64 i64 i32) (result i64) (select (local.get 0) (local.get 1) (local.get 2)))
  (func $float (param f64 f64 i32) (result f64) (select (local.get 0) (local.get 1) (local.get 2)))
  (func $by_float (param i32 i32 f64 f64) (result i32)
    (select (local.get 0) (local.get 1) (f64.eq (local.get 2) (local.get 3))))
  (func $known (param i32 i32) (result i32) (select (local.get 0) (local.get 1) (i32.const 1)))
  (func $reference (param externref externref i32) (result externref)
    (select (result externref) (local.get 0) (local.get 1) (local.get 2))))
