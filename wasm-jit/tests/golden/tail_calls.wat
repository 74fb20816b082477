;; Tail calls: to itself, with more and with fewer arguments on the stack, through a table.
(module
  (type $unary (func (param i32) (result i32)))
  (table 1 funcref)
  (func $count (param i32 i32) (result i32)
    (if (i32.eqz (local.get 0)) (then (return (local.get 1))))
    (return_call $count (i32.sub (local.get 0) (i32.const 1)) (i32.add (local.get 1) (local.get 0))))
  (func $wide (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)
    (return_call $count (local.get 6) (local.get 7)))
  (func $widen (param i32 i32) (result i32)
    (return_call $wide (local.get 0) (local.get 0) (local.get 0) (local.get 0) (local.get 0) (local.get 0)
      (local.get 0) (local.get 1)))
  (func $indirect (param i32 i32) (result i32)
    (return_call_indirect (type $unary) (local.get 0) (local.get 1))))
