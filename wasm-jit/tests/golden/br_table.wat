;; Jump tables: plain, with a value, out of a loop, with a constant index.
(module
  (func $plain (param i32) (result i32)
    (block $a (block $b (block $c
      (br_table $a $b $c $b (local.get 0)))
      (return (i32.const 10)))
      (return (i32.const 20)))
    (i32.const 30))
  (func $value (param i32) (result i32)
    (block $a (result i32) (block $b (result i32)
      (br_table $a $b (i32.const 7) (local.get 0)))
      (drop) (i32.const 8)))
  (func $machine (param $state i32) (param $steps i32) (result i32)
    (loop $again
      (block $two (block $one (block $zero
        (br_table $zero $one $two (local.get $state)))
        (local.set $state (i32.const 1)) (br_if $again (local.tee $steps (i32.sub (local.get $steps) (i32.const 1)))))
        (local.set $state (i32.const 2)) (br $again))
      (local.set $state (i32.const 0))
      (br_if $again (local.get $steps)))
    (local.get $state))
  (func $constant (result i32)
    (block (block (br_table 0 1 (i32.const 1))) (return (i32.const 1))) (i32.const 2)))
