;; Vectors: locals in registers, memory operands, constants, shuffles, and a sequence.
(module
  (memory 1)
  (func $dot (param $a i32) (param $b i32) (param $n i32) (result f32) (local $sum v128)
    (loop $again
      (local.set $sum
        (f32x4.add (local.get $sum)
          (f32x4.mul (v128.load (local.get $a)) (v128.load offset=16 (local.get $b)))))
      (local.set $a (i32.add (local.get $a) (i32.const 16)))
      (local.set $b (i32.add (local.get $b) (i32.const 16)))
      (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    (f32x4.extract_lane 1 (local.get $sum)))
  (func $lanes (param $x v128) (param $y v128) (result v128)
    (i8x16.shuffle 0 16 1 17 2 18 3 19 4 20 5 21 6 22 7 23
      (i8x16.shuffle 4 5 6 7 0 1 2 3 12 13 14 15 8 9 10 11 (local.get $x) (local.get $x))
      (v128.and (local.get $y) (i32x4.splat (i32.const 255)))))
  (func $any (param $x v128) (result i32)
    (if (result i32) (v128.any_true (local.get $x)) (then (i32.const 1)) (else (i32.const 2))))
  (func $call (param $x v128) (param $s i32) (result v128)
    (i8x16.shr_s
      (i64x2.mul (call $lanes (local.get $x) (v128.const i64x2 1 -1)) (local.get $x))
      (local.get $s))))
