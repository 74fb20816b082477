;; A load that the next instruction uses becomes its memory operand; narrow loads extend.
(module
  (memory 1)
  (func $add (param i32 i32) (result i32) (i32.add (local.get 0) (i32.load offset=16 (local.get 1))))
  (func $compare (param i32 i32) (result i32)
    (if (result i32) (i32.lt_u (local.get 0) (i32.load (local.get 1))) (then (i32.const 1)) (else (i32.const 2))))
  (func $float (param f64 i32) (result f64) (f64.mul (local.get 0) (f64.load offset=8 (local.get 1))))
  (func $narrow (param i32) (result i32)
    (i32.add (i32.load8_u (local.get 0)) (i32.load16_s offset=2 (local.get 0))))
  (func $wide (param i32) (result i64) (i64.load32_s (local.get 0)))
  ;; The store is between the load and its use.
  (func $kept (param i32 i32) (result i32)
    (i32.load (local.get 0))
    (i32.store (local.get 1) (i32.const 7))
    (i32.load (local.get 1))
    (i32.add)))
