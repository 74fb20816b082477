;; Loops, branches, calls, recursion, comparisons fused with branches, loads fused with additions.
(module
  (memory (export "memory") 1)
  (func $leaf (param $x i32) (result i32)
    (i32.xor (i32.mul (local.get $x) (i32.const 31)) (i32.load (i32.and (local.get $x) (i32.const 1020)))))
  (func $work (param $n i32) (param $depth i32) (result i32) (local $i i32) (local $sum i32)
    (block $none
      (br_if $none (i32.eqz (local.get $depth)))
      (local.set $sum (call $work (local.get $n) (i32.sub (local.get $depth) (i32.const 1)))))
    (loop $again
      (if (i32.and (local.get $i) (i32.const 3))
        (then (local.set $sum (i32.add (local.get $sum) (call $leaf (local.get $i)))))
        (else (i32.store (i32.and (local.get $i) (i32.const 1020)) (local.get $sum))))
      (loop $inner
        (local.set $sum
          (i32.add (local.get $sum) (i32.load (i32.and (local.get $sum) (i32.const 1020)))))
        (br_if $inner (i32.gt_u
          (local.tee $sum (i32.rotl (local.get $sum) (i32.const 3))) (i32.const 0xc0000000))))
      (br_if $again
        (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n))))
    (local.get $sum))
  (func (export "main") (result i64)
    (memory.fill (i32.const 0) (i32.const 7) (i32.const 1024))
    (i64.extend_i32_u (call $work (i32.const 100) (i32.const 20)))))
