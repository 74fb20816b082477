;; Arguments in registers and on the stack, results in registers, values preserved across a call.
(module
  (import "host" "f" (func $host (param i32) (result i32)))
  (func $fib (param $n i32) (result i32)
    (if (result i32) (i32.lt_s (local.get $n) (i32.const 2))
      (then (local.get $n))
      (else (i32.add
        (call $fib (i32.sub (local.get $n) (i32.const 1)))
        (call $fib (i32.sub (local.get $n) (i32.const 2)))))))
  (func $many (param i32 i32 i32 i32 i32 i32 i32 i64 f64) (result i64)
    (i64.add (local.get 7) (i64.extend_i32_s (local.get 6))))
  (func $caller (param i32) (result i64)
    (call $many (i32.const 1) (local.get 0) (i32.const 3) (i32.const 4) (i32.const 5) (i32.const 6)
      (local.get 0) (i64.const 8) (f64.const 9)))
  ;; The incoming argument registers are those of the outgoing arguments, in another order.
  (func $swap (param i32 i32) (result i32) (call $swap (local.get 1) (local.get 0)))
  (func $to_host (param i32) (result i32) (i32.add (call $host (local.get 0)) (local.get 0))))
