;; Sum of an array: counter, pointer, sum and bound stay in registers across the loop.
(module
  (memory 1)
  (func $sum (param $at i32) (param $count i32) (result i32) (local $sum i32) (local $end i32)
    (local.set $end (i32.add (local.get $at) (i32.shl (local.get $count) (i32.const 2))))
    (block $done
      (br_if $done (i32.eqz (local.get $count)))
      (loop $again
        (local.set $sum (i32.add (local.get $sum) (i32.load (local.get $at))))
        (local.set $at (i32.add (local.get $at) (i32.const 4)))
        (br_if $again (i32.ne (local.get $at) (local.get $end)))))
    (local.get $sum)))
