  ;; A hash map with chains, which grows: arrays of references, and entries that are replaced.
  (type $entry (struct (field $key i32) (field $value (mut i64)) (field $next (mut (ref null $entry)))))
  (type $buckets (array (mut (ref null $entry))))
  (global $map (mut (ref null $buckets)) (ref.null $buckets))
  (global $size (mut i32) (i32.const 0))
  (func $bucket (param $key i32) (result i32)
    (i32.and
      (i32.shr_u (i32.mul (local.get $key) (i32.const 0x9e3779b1)) (i32.const 7))
      (i32.sub (array.len (global.get $map)) (i32.const 1))))
  (func $find (param $key i32) (result (ref null $entry)) (local $entry (ref null $entry))
    (local.set $entry (array.get $buckets (global.get $map) (call $bucket (local.get $key))))
    (block $done
      (loop $next
        (br_if $done (ref.is_null (local.get $entry)))
        (br_if $done (i32.eq (struct.get $entry $key (local.get $entry)) (local.get $key)))
        (local.set $entry (struct.get $entry $next (local.get $entry)))
        (br $next)))
    (local.get $entry))
  (func $link (param $entry (ref $entry)) (local $at i32)
    (local.set $at (call $bucket (struct.get $entry $key (local.get $entry))))
    (struct.set $entry $next (local.get $entry) (array.get $buckets (global.get $map) (local.get $at)))
    (array.set $buckets (global.get $map) (local.get $at) (local.get $entry)))
  (func $grow (local $old (ref null $buckets)) (local $at i32) (local $entry (ref null $entry))
    (local $next (ref null $entry))
    (local.set $old (global.get $map))
    (global.set $map
      (array.new_default $buckets (i32.mul (array.len (local.get $old)) (i32.const 2))))
    (loop $again
      (local.set $entry (array.get $buckets (local.get $old) (local.get $at)))
      (block $done
        (loop $more
          (br_if $done (ref.is_null (local.get $entry)))
          (local.set $next (struct.get $entry $next (local.get $entry)))
          (call $link (ref.as_non_null (local.get $entry)))
          (local.set $entry (local.get $next))
          (br $more)))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $again (i32.lt_u (local.get $at) (array.len (local.get $old))))))
  (func $add (param $key i32) (local $found (ref null $entry))
    (local.set $found (call $find (local.get $key)))
    (if (ref.is_null (local.get $found))
      (then
        (global.set $size (i32.add (global.get $size) (i32.const 1)))
        (if (i32.gt_u (global.get $size) (array.len (global.get $map))) (then (call $grow)))
        (call $link (struct.new $entry (local.get $key) (i64.const 1) (ref.null $entry))))
      (else
        (struct.set $entry $value (local.get $found)
          (i64.add (struct.get $entry $value (local.get $found)) (i64.const 1))))))
  ;; An entry for each key, and 15 arrays: of 16 elements, 32, and so on.
  (func $objects (result i32) (i32.add (global.get $size) (i32.const 15)))
  (func $kernel (result i32) (local $left i32) (local $random i32)
    (global.set $map (array.new_default $buckets (i32.const 16)))
    (global.set $size (i32.const 0))
    (local.set $random (i32.const 1))
    (local.set $left (i32.const 2000000))
    (loop $again
      (if (i32.eqz (i32.and (local.get $left) (i32.const 0xfff))) (then (call $step)))
      (local.set $random
        (i32.add (i32.mul (local.get $random) (i32.const 1664525)) (i32.const 1013904223)))
      (call $add (i32.shr_u (local.get $random) (i32.const 14)))
      (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
    (global.get $size))
