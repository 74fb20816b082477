;; The second memory has no base register of its own.
(module
  (memory 1)
  (memory $other 1)
  (func $between (param i32 i32)
    (i32.store $other (local.get 0) (i32.load (local.get 1))))
  (func $loop (param $n i32) (result i32) (local $sum i32)
    (loop $again
      (local.set $sum (i32.add (local.get $sum) (i32.load $other offset=4 (local.get $n))))
      (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 4)))))
    (local.get $sum)))
