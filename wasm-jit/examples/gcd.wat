;; Euclid's greatest common divisor.
(module
  (func $gcd (export "gcd") (param $a i32) (param $b i32) (result i32)
    (local $rest i32)
    (loop $again
      (if (local.get $b)
        (then
          (local.set $rest (i32.rem_u (local.get $a) (local.get $b)))
          (local.set $a (local.get $b))
          (local.set $b (local.get $rest))
          (br $again))))
    (local.get $a)))
