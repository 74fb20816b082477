;; More live values than registers: the lowest are spilled to their slots and reloaded.
(module
  (func $deep (param i32 i32 i32 i32) (result i32)
    (i32.mul (local.get 0) (local.get 1)) (i32.mul (local.get 1) (local.get 2))
    (i32.mul (local.get 2) (local.get 3)) (i32.mul (local.get 3) (local.get 0))
    (i32.xor (local.get 0) (local.get 1)) (i32.xor (local.get 1) (local.get 2))
    (i32.xor (local.get 2) (local.get 3)) (i32.xor (local.get 3) (local.get 0))
    (i32.or (local.get 0) (local.get 1))
    (i32.add) (i32.add) (i32.add) (i32.add) (i32.add) (i32.add) (i32.add) (i32.add))
  ;; More locals than cache registers.
  (func $many_locals (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32) (local i32 i32 i32 i32)
    (loop $again
      (local.set 8 (i32.add (local.get 8) (i32.xor (local.get 0) (local.get 1))))
      (local.set 9 (i32.add (local.get 9) (i32.xor (local.get 2) (local.get 3))))
      (local.set 10 (i32.add (local.get 10) (i32.xor (local.get 4) (local.get 5))))
      (local.set 11 (i32.add (local.get 11) (i32.xor (local.get 6) (local.get 7))))
      (br_if $again (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
    (i32.add (i32.add (local.get 8) (local.get 9)) (i32.add (local.get 10) (local.get 11)))))
