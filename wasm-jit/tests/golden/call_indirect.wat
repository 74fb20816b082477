;; The index, the element's type and null are checked; the callee may belong to another instance.
(module
  (type $binary (func (param i32 i32) (result i32)))
  (table 10 funcref)
  (table $growing 1 100 funcref)
  (func $call (param i32 i32 i32) (result i32)
    (call_indirect (type $binary) (local.get 0) (local.get 1) (local.get 2)))
  (func $constant (param i32 i32) (result i32)
    (call_indirect (type $binary) (local.get 0) (local.get 1) (i32.const 3)))
  (func $second (param i32 i32) (result i32)
    (call_indirect $growing (type $binary) (local.get 0) (local.get 1) (i32.const 0)))
  (func $loop (param $n i32) (result i32) (local $x i32)
    (loop $again
      (local.set $x (call_indirect (type $binary) (local.get $x) (local.get $n) (local.get $n)))
      (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    (local.get $x)))
