;; Float constants in loops. An innermost loop without calls holds them in registers.
(module
  (import "host" "f" (func $f))
  (memory 1)
  (func $scale (param $at i32)
    (loop
      (f64.store (local.get $at)
        (f64.add (f64.mul (f64.load (local.get $at)) (f64.const 1.5)) (f64.const 0.25)))
      (f32.store offset=8 (local.get $at) (f32.const 2.5))
      (local.set $at (i32.add (local.get $at) (i32.const 16)))
      (br_if 0 (i32.ne (local.get $at) (i32.const 1600)))))
  ;; As the left operand, which the instruction must not overwrite.
  (func $invert (param $at i32)
    (loop
      (f64.store (local.get $at) (f64.div (f64.const 1) (f64.load (local.get $at))))
      (f64.store offset=8 (local.get $at) (f64.div (f64.const 1) (f64.load offset=8 (local.get $at))))
      (local.set $at (i32.add (local.get $at) (i32.const 16)))
      (br_if 0 (i32.ne (local.get $at) (i32.const 1600)))))
  ;; More constants than a loop holds.
  (func $many (param $x f64) (result f64)
    (loop
      (local.set $x
        (f64.add (f64.mul (f64.add (f64.mul (f64.add (f64.mul (local.get $x)
          (f64.const 1.25)) (f64.const 1.5)) (f64.const 1.75)) (f64.const 2.25)) (f64.const 2.5))
          (f64.const 2.75)))
      (br_if 0 (f64.lt (local.get $x) (f64.const 1000))))
    (local.get $x))
  ;; A routine of the runtime, for which the loop is not one with calls.
  (data $data "x")
  (func $routine (param $x f64) (result f64)
    (loop
      (data.drop $data)
      (br_if 0 (f64.lt (local.tee $x (f64.mul (local.get $x) (f64.const 1.5))) (f64.const 1000))))
    (local.get $x))
  ;; After an exception, registers are lost.
  (tag $tag)
  (func $caught (param $x f64) (result f64)
    (loop
      (block $handler (try_table (catch_all $handler) (throw $tag)))
      (br_if 0 (f64.lt (local.tee $x (f64.mul (local.get $x) (f64.const 1.5))) (f64.const 1000))))
    (local.get $x))
  (func $calls (param $x f64) (result f64)
    (loop
      (call $f)
      (br_if 0 (f64.lt (local.tee $x (f64.mul (local.get $x) (f64.const 1.5))) (f64.const 1000))))
    (local.get $x)))
