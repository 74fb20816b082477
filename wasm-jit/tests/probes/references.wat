;; Branches that depend on references. In the order of the code, taken and not taken: 3 and 6 times,
;; 6 and 3 times, 1 and 1 times.
(module
    (type $number (func (result i32)))
    (elem declare func $seven)
    (func $seven (type $number) (i32.const 7))
    ;; Null for multiples of three.
    (func $pick (param $n i32) (result (ref null $number))
        (select (result (ref null $number)) (ref.func $seven) (ref.null $number)
            (i32.rem_u (local.get $n) (i32.const 3))))
    (func (export "run") (local $n i32) (local $sum i32) (local $odd i32)
        (local.set $n (i32.const 9))
        (loop $again
            (block $null
                (local.set $sum (i32.add (local.get $sum)
                    (call_ref $number (br_on_null $null (call $pick (local.get $n)))))))
            (block $other (result (ref $number))
                (br_on_non_null $other (call $pick (local.get $n)))
                ;; A loop that follows a branch, executed five times.
                (loop $twice
                    (br_if $twice (i32.eqz (local.tee $odd (i32.xor (local.get $odd) (i32.const 1))))))
                (ref.func $seven))
            (call_ref $number)
            (local.get $sum)
            (i32.add)
            (local.set $sum)
            (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.set $n (i32.const 2))
        (loop $up
            (drop (br_on_null $up (call $pick (local.tee $n (i32.add (local.get $n) (i32.const 1)))))))))
