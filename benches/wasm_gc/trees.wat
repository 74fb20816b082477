  ;; Binary trees that are built and walked: short-lived objects, beside one tree that lives on.
  (type $tree (struct (field $left (ref null $tree)) (field $right (ref null $tree))))
  (func $make (param $depth i32) (result (ref $tree))
    (if (i32.eqz (local.get $depth))
      (then (return (struct.new $tree (ref.null $tree) (ref.null $tree)))))
    (struct.new $tree
      (call $make (i32.sub (local.get $depth) (i32.const 1)))
      (call $make (i32.sub (local.get $depth) (i32.const 1)))))
  (func $count (param $tree (ref null $tree)) (result i32)
    (if (ref.is_null (local.get $tree)) (then (return (i32.const 0))))
    (i32.add (i32.const 1)
      (i32.add
        (call $count (struct.get $tree $left (local.get $tree)))
        (call $count (struct.get $tree $right (local.get $tree))))))
  ;; A complete tree of depth 16, and 400 of depth 12.
  (func $objects (result i32)
    (i32.add (i32.const 0x1ffff) (i32.mul (i32.const 400) (i32.const 0x1fff))))
  (func $kernel (result i32) (local $kept (ref null $tree)) (local $sum i32) (local $left i32)
    (local.set $kept (call $make (i32.const 16)))
    (local.set $left (i32.const 400))
    (loop $again
      (call $step)
      (local.set $sum (i32.add (local.get $sum) (call $count (call $make (i32.const 12)))))
      (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
    (i32.add (local.get $sum) (call $count (local.get $kept))))
