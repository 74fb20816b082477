;; Register-cached locals around a loop with calls: those in callee-saved registers stay there, the others are stored and loaded.
(module
  (func $callee (param i32) (result i32) (local.get 0))
  (func $run (param $count i32) (result i32) (local $sum i32) (local $x f64)
    (loop $again
      (local.set $sum (i32.add (local.get $sum) (call $callee (local.get $count))))
      (local.set $x (f64.add (local.get $x) (f64.const 1)))
      (br_if $again (local.tee $count (i32.sub (local.get $count) (i32.const 1)))))
    (i32.add (local.get $sum) (i32.trunc_f64_s (local.get $x))))
  ;; An inner loop without calls chooses its own cache registers.
  (func $nested (param $outer i32) (param $inner i32) (result i32) (local $sum i32) (local $i i32)
    (loop $rows
      (local.set $i (local.get $inner))
      (loop $columns
        (local.set $sum (i32.add (local.get $sum) (i32.mul (local.get $i) (local.get $outer))))
        (br_if $columns (local.tee $i (i32.sub (local.get $i) (i32.const 1)))))
      (drop (call $callee (local.get $sum)))
      (br_if $rows (local.tee $outer (i32.sub (local.get $outer) (i32.const 1)))))
    (local.get $sum)))
