;; Constants that a loop holds in registers: after calls of the runtime and exceptions, on branches
;; out of the loop, and as operands that must not be overwritten.
(module
  (memory 1)
  (data $data "x")
  (func (export "routine") (param $x f64) (result f64)
    (loop $again
      (data.drop $data)
      (local.set $x (f64.mul (local.get $x) (f64.const 1.5)))
      (br_if $again (f64.lt (local.get $x) (f64.const 1000))))
    (local.get $x))
  (tag $tag)
  (func (export "caught") (param $x f64) (result f64)
    (loop $again
      (block $handler (try_table (catch_all $handler) (throw $tag)))
      (local.set $x (f64.mul (local.get $x) (f64.const 1.5)))
      (br_if $again (f64.lt (local.get $x) (f64.const 1000))))
    (local.get $x))
  (func (export "leave") (param $x f64) (result f64)
    (block $out (result f64)
      (loop $again
        (drop (br_if $out (f64.const 1.5) (f64.gt (local.get $x) (f64.const 100))))
        (local.set $x (f64.mul (local.get $x) (f64.const 1.5)))
        (br $again))
      (unreachable)))
  (func (export "left") (param $x f64) (param $n i32) (result f64)
    (loop $again
      (local.set $x (f64.sub (f64.const 3.5) (f64.div (f64.const 3.5) (local.get $x))))
      (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    (local.get $x))
  (func (export "widths") (param $x f64) (param $n i32) (result f64)
    (loop $again
      (local.set $x
        (f64.add (local.get $x) (f64.promote_f32 (f32.mul (f32.demote_f64 (local.get $x)) (f32.const 0.5)))))
      (local.set $x (f64.add (local.get $x) (f64.const 0.5)))
      (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    (local.get $x))
  ;; The locals of the outer loop take all registers that may cache floats.
  (func (export "nested") (param $n i32) (result f64)
    (local $a f64) (local $b f64) (local $c f64) (local $d f64) (local $e f64) (local $f f64)
    (local $g f64) (local $h f64) (local $i f64) (local $j f64) (local $m i32)
    (loop $outer
      (local.set $a (f64.add (local.get $a) (f64.const 1)))
      (local.set $b (f64.add (local.get $b) (local.get $a)))
      (local.set $c (f64.add (local.get $c) (local.get $b)))
      (local.set $d (f64.add (local.get $d) (local.get $c)))
      (local.set $e (f64.add (local.get $e) (local.get $d)))
      (local.set $f (f64.add (local.get $f) (local.get $e)))
      (local.set $g (f64.add (local.get $g) (local.get $f)))
      (local.set $h (f64.add (local.get $h) (local.get $g)))
      (local.set $i (f64.add (local.get $i) (local.get $h)))
      (local.set $m (i32.const 3))
      (loop $inner
        (local.set $j (f64.add (f64.mul (local.get $j) (f64.const 0.5)) (f64.const 8)))
        (br_if $inner (local.tee $m (i32.sub (local.get $m) (i32.const 1)))))
      (local.set $i (f64.add (local.get $i) (local.get $j)))
      (br_if $outer (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    (f64.add (local.get $i) (f64.add (local.get $a) (local.get $h)))))

(assert_return (invoke "routine" (f64.const 1)) (f64.const 1477.891880035400390625))
(assert_return (invoke "caught" (f64.const 1)) (f64.const 1477.891880035400390625))
(assert_return (invoke "leave" (f64.const 1)) (f64.const 1.5))
(assert_return (invoke "left" (f64.const 1) (i32.const 1)) (f64.const 0))
(assert_return (invoke "left" (f64.const 7) (i32.const 2)) (f64.const 2.333333333333333))
(assert_return (invoke "widths" (f64.const 1) (i32.const 2)) (f64.const 3.5))
(assert_return (invoke "nested" (i32.const 1)) (f64.const 17))
(assert_return (invoke "nested" (i32.const 2)) (f64.const 50.75))
