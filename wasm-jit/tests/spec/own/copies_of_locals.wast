;; A register may hold a newer value of a local than the local's slot: the value is stored before
;; control reaches a label or a callee. The uses of `$x` do not count, since the code is unlikely:
;; no register keeps it across labels.

(module
  (func $other)

  (func (export "aliases") (param $a i32) (result i32) (local $x i32)
    (@metadata.code.branch_hint "\00")
    (if (i32.const 1) (then
      (local.set $x (i32.add (i32.mul (local.get $a) (i32.const 3)) (i32.const 2)))
      (return (local.get $x) (local.get $x) (local.set $x (i32.const 7)) (i32.add) (i32.add (local.get $x)))))
    (unreachable))

  (func (export "if") (param $a i32) (result i32) (local $x i32)
    (@metadata.code.branch_hint "\00")
    (if (i32.const 1) (then
      (local.set $x (i32.add (i32.mul (local.get $a) (i32.const 3)) (i32.const 2)))
      (if (local.get $a)
        (then (local.set $x (i32.add (local.get $x) (i32.const 1))))
        (else (local.set $x (i32.mul (local.get $x) (i32.const 10)))))
      (return (local.get $x))))
    (unreachable))

  (func (export "br_if") (param $a i32) (result i32) (local $x i32)
    (@metadata.code.branch_hint "\00")
    (if (i32.const 1) (then
      (block $out
        (local.set $x (i32.add (i32.mul (local.get $a) (i32.const 3)) (i32.const 2)))
        (br_if $out (i32.eqz (local.get $a)))
        (local.set $x (i32.add (local.get $x) (i32.const 1))))
      (return (local.get $x))))
    (unreachable))

  ;; The condition is what the local is set to.
  (func (export "br_if_new_value") (param $a i32) (result i32) (local $x i32)
    (@metadata.code.branch_hint "\00")
    (if (i32.const 1) (then
      (block $out
        (br_if $out (local.tee $x (i32.sub (local.get $a) (i32.const 5))))
        (local.set $x (i32.add (local.get $x) (i32.const 100))))
      (return (local.get $x))))
    (unreachable))

  ;; The copy stays newer where the branch is not taken.
  (func (export "leave_loop") (param $a i32) (result i32) (local $x i32)
    (@metadata.code.branch_hint "\00")
    (if (i32.const 1) (then
      (block $out (result i32)
        (loop $again
          (local.set $x (i32.add (local.get $x) (local.get $a)))
          (drop (br_if $out
            (i32.mul (local.get $x) (i32.const 2))
            (i32.gt_s (local.get $x) (i32.const 20))))
          (local.set $x (i32.add (local.get $x) (i32.const 1)))
          (br $again))
        (unreachable))
      (return (i32.add (local.get $x)))))
    (unreachable))

  (func (export "leave_function") (param $a i32) (result i32) (local $x i32)
    (@metadata.code.branch_hint "\00")
    (if (i32.const 1) (then
      (local.set $x (i32.add (i32.mul (local.get $a) (i32.const 3)) (i32.const 2)))
      (drop (br_if 1 (i32.mul (local.get $x) (i32.const 2)) (local.get $a)))
      (return (i32.add (local.get $x) (i32.const 1)))))
    (unreachable))

  (func (export "br_table") (param $a i32) (result i32) (local $x i32)
    (@metadata.code.branch_hint "\00")
    (if (i32.const 1) (then
      (block $one
        (block $zero
          (local.set $x (i32.add (i32.mul (local.get $a) (i32.const 3)) (i32.const 2)))
          (br_table $zero $one (local.get $a)))
        (return (i32.mul (local.get $x) (i32.const 10))))
      (return (local.get $x))))
    (unreachable))

  (func (export "loop") (param $a i32) (result i32) (local $x i32)
    (@metadata.code.branch_hint "\00")
    (if (i32.const 1) (then
      (local.set $x (i32.add (i32.mul (local.get $a) (i32.const 3)) (i32.const 2)))
      (loop $again
        (local.set $x (i32.add (local.get $x) (i32.const 1)))
        (local.set $a (i32.sub (local.get $a) (i32.const 1)))
        (br_if $again (i32.gt_s (local.get $a) (i32.const 0))))
      (return (local.get $x))))
    (unreachable))

  (func (export "call") (param $a i32) (result i32) (local $x i32)
    (@metadata.code.branch_hint "\00")
    (if (i32.const 1) (then
      (local.set $x (i32.add (i32.mul (local.get $a) (i32.const 3)) (i32.const 2)))
      (call $other)
      (return (local.get $x))))
    (unreachable))

  ;; Registers keep the locals, but not across the call.
  (func $clobber (param $a i32) (result i32) (local $x i32) (local $y i32)
    (local.set $x (i32.mul (local.get $a) (i32.const 1000)))
    (local.set $y (i32.mul (local.get $x) (i32.const 1000)))
    (i32.add (i32.add (local.get $x) (local.get $x)) (i32.add (local.get $y) (local.get $y))))
  (func (export "both parts after a call") (param $a i32) (result i32) (local $x i32)
    (local.set $x (i32.add (local.get $a) (i32.const 7)))
    (local.set $x (i32.mul (local.get $x) (local.get $x)))
    (drop (call $clobber (local.get $a)))
    (if (local.get $a)
      (then (local.set $x (i32.add (local.get $x) (i32.const 100))))
      (else (local.set $x (i32.add (local.get $x) (i32.const 200)))))
    (local.get $x))

  ;; No register keeps its value: all of them are needed for operands.
  (func (export "operands") (param $a i32) (result i32) (local $x i32)
    (@metadata.code.branch_hint "\00")
    (if (i32.const 1) (then
      (local.set $x (i32.add (i32.mul (local.get $a) (i32.const 3)) (i32.const 2)))
      (i32.mul (local.get $a) (i32.const 11)) (i32.mul (local.get $a) (i32.const 13))
      (i32.mul (local.get $a) (i32.const 17)) (i32.mul (local.get $a) (i32.const 19))
      (i32.mul (local.get $a) (i32.const 23)) (i32.mul (local.get $a) (i32.const 29))
      (i32.mul (local.get $a) (i32.const 31)) (i32.mul (local.get $a) (i32.const 37))
      (i32.mul (local.get $a) (i32.const 41)) (i32.mul (local.get $a) (i32.const 43))
      (i32.add) (i32.add) (i32.add) (i32.add) (i32.add) (i32.add) (i32.add) (i32.add) (i32.add)
      (return (i32.add (local.get $x)))))
    (unreachable))

  (func (export "br_on_null") (param $a i32) (param $r externref) (result i32) (local $x i32)
    (@metadata.code.branch_hint "\00")
    (if (i32.const 1) (then
      (block $out
        (local.set $x (i32.add (i32.mul (local.get $a) (i32.const 3)) (i32.const 2)))
        (drop (br_on_null $out (local.get $r)))
        (local.set $x (i32.add (local.get $x) (i32.const 1))))
      (return (local.get $x))))
    (unreachable))

  (func (export "br_on_non_null") (param $a i32) (param $r externref) (result i32) (local $x i32)
    (@metadata.code.branch_hint "\00")
    (if (i32.const 1) (then
      (drop (block $out (result (ref extern))
        (local.set $x (i32.add (i32.mul (local.get $a) (i32.const 3)) (i32.const 2)))
        (br_on_non_null $out (local.get $r))
        (return (i32.add (local.get $x) (i32.const 1)))))
      (return (local.get $x))))
    (unreachable))

  (func (export "br_on_cast") (param $a i32) (result i32) (local $x i32) (local $any anyref)
    (@metadata.code.branch_hint "\00")
    (if (i32.const 1) (then
      (local.set $any
        (if (result anyref) (local.get $a) (then (ref.i31 (local.get $a))) (else (ref.null any))))
      (drop (block $out (result (ref i31))
        (local.set $x (i32.add (i32.mul (local.get $a) (i32.const 3)) (i32.const 2)))
        (br_on_cast $out anyref (ref i31) (local.get $any))
        (drop)
        (return (i32.add (local.get $x) (i32.const 1)))))
      (return (local.get $x))))
    (unreachable))
)

(assert_return (invoke "aliases" (i32.const 5)) (i32.const 41))
(assert_return (invoke "if" (i32.const 5)) (i32.const 18))
(assert_return (invoke "if" (i32.const 0)) (i32.const 20))
(assert_return (invoke "br_if" (i32.const 5)) (i32.const 18))
(assert_return (invoke "br_if" (i32.const 0)) (i32.const 2))
(assert_return (invoke "br_if_new_value" (i32.const 7)) (i32.const 2))
(assert_return (invoke "br_if_new_value" (i32.const 5)) (i32.const 100))
(assert_return (invoke "leave_loop" (i32.const 5)) (i32.const 69))
(assert_return (invoke "leave_loop" (i32.const 21)) (i32.const 63))
(assert_return (invoke "leave_function" (i32.const 0)) (i32.const 3))
(assert_return (invoke "leave_function" (i32.const 4)) (i32.const 28))
(assert_return (invoke "br_table" (i32.const 0)) (i32.const 20))
(assert_return (invoke "br_table" (i32.const 5)) (i32.const 17))
(assert_return (invoke "loop" (i32.const 5)) (i32.const 22))
(assert_return (invoke "call" (i32.const 5)) (i32.const 17))
(assert_return (invoke "both parts after a call" (i32.const 0)) (i32.const 249))
(assert_return (invoke "both parts after a call" (i32.const 1)) (i32.const 164))
(assert_return (invoke "operands" (i32.const 5)) (i32.const 1337))
(assert_return (invoke "br_on_null" (i32.const 5) (ref.null extern)) (i32.const 17))
(assert_return (invoke "br_on_null" (i32.const 5) (ref.extern 1)) (i32.const 18))
(assert_return (invoke "br_on_non_null" (i32.const 5) (ref.null extern)) (i32.const 18))
(assert_return (invoke "br_on_non_null" (i32.const 5) (ref.extern 1)) (i32.const 17))
(assert_return (invoke "br_on_cast" (i32.const 5)) (i32.const 17))
(assert_return (invoke "br_on_cast" (i32.const 0)) (i32.const 3))
