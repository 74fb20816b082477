;; Updates of memory and of locals in one instruction where possible.
(module
  (memory 1)
  (global $counter (mut i32) (i32.const 0))
  (func $memory (param i32 i32)
    (i32.store (local.get 0) (i32.add (i32.load (local.get 0)) (local.get 1))))
  (func $increment (param i32)
    (i32.store offset=4 (local.get 0) (i32.add (i32.load offset=4 (local.get 0)) (i32.const 1))))
  (func $global (global.set $counter (i32.add (global.get $counter) (i32.const 1))))
  (func $locals (param i32 i32) (result i32)
    (loop $again
      (local.set 0 (i32.xor (local.get 0) (i32.shl (local.get 0) (i32.const 13))))
      (local.set 0 (i32.xor (local.get 0) (i32.shr_u (local.get 0) (i32.const 17))))
      (local.set 0 (i32.xor (local.get 0) (i32.shl (local.get 0) (i32.const 5))))
      (br_if $again (local.tee 1 (i32.sub (local.get 1) (i32.const 1)))))
    (local.get 0))
  ;; One instruction that also moves.
  (func $rotate (param i64 i64) (result i64)
    (loop $again
      (local.set 0 (i64.rotl (i64.xor (local.get 0) (local.get 1)) (i64.const 13)))
      (br_if $again (i64.ne (local.tee 1 (i64.sub (local.get 1) (i64.const 1))) (i64.const 0))))
    (local.get 0))
  ;; The old value is still on the stack.
  (func $old_value (param i32) (result i32)
    (local.get 0)
    (local.set 0 (i32.add (local.get 0) (i32.const 1)))
    (i32.mul (local.get 0))))
