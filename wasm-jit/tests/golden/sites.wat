;; --sites: a version with a site for each instruction and the entry; stubs that keep the flags, that try a pending load, and others.
(module
  (memory 1)
  (func $add (param i32 i32) (result i32)
    (i32.add (local.get 0) (i32.load offset=8 (local.get 1))))
  (func $count (param $n i32) (result i32) (local $sum i32)
    (loop $again
      (local.set $sum (call $add (local.get $sum) (local.get $n)))
      (br_if $again (i32.lt_u (local.tee $n (i32.sub (local.get $n) (i32.const 1))) (i32.const 7))))
    (local.get $sum)))
