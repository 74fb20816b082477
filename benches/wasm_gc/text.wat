  ;; Texts that are built piece by piece: arrays of bytes that are allocated and copied.
  (type $text (array (mut i8)))
  (func $append (param $text (ref $text)) (param $more (ref $text)) (result (ref $text))
    (local $both (ref null $text))
    (local.set $both
      (array.new_default $text
        (i32.add (array.len (local.get $text)) (array.len (local.get $more)))))
    (array.copy $text $text
      (local.get $both) (i32.const 0) (local.get $text) (i32.const 0) (array.len (local.get $text)))
    (array.copy $text $text
      (local.get $both) (array.len (local.get $text))
      (local.get $more) (i32.const 0) (array.len (local.get $more)))
    (ref.as_non_null (local.get $both)))
  (func $hash (param $text (ref $text)) (result i32) (local $at i32) (local $hash i32)
    (loop $again
      (local.set $hash
        (i32.add (i32.mul (local.get $hash) (i32.const 31))
          (array.get_u $text (local.get $text) (local.get $at))))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $again (i32.lt_u (local.get $at) (array.len (local.get $text)))))
    (local.get $hash))
  ;; Two for each addition; a text has 64 additions.
  (func $objects (result i32) (i32.const 403126))
  (func $kernel (result i32) (local $text (ref $text)) (local $left i32) (local $hash i32)
    (local.set $left (i32.const 200000))
    (local.set $text (array.new_fixed $text 3 (i32.const 97) (i32.const 98) (i32.const 99)))
    (loop $again
      (if (i32.eqz (i32.and (local.get $left) (i32.const 0xfff))) (then (call $step)))
      (local.set $text
        (call $append (local.get $text)
          (array.new_fixed $text 4
            (i32.const 120) (i32.const 121) (local.get $left) (i32.const 122))))
      (if (i32.gt_u (array.len (local.get $text)) (i32.const 256))
        (then
          (local.set $hash
            (i32.add (i32.mul (local.get $hash) (i32.const 17)) (call $hash (local.get $text))))
          (local.set $text (array.new $text (i32.const 65) (i32.const 3)))))
      (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
    (local.get $hash))
