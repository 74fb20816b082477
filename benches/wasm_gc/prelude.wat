  (import "wasi_snapshot_preview1" "clock_time_get"
    (func $clock_time_get (param i32 i64 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)

  ;; Nanoseconds of the monotonic clock.
  (func $now (result i64)
    (drop (call $clock_time_get (i32.const 1) (i64.const 1) (i32.const 0)))
    (i64.load (i32.const 0)))

  ;; Writes a number and a line feed.
  (func $print (param $number i64) (local $at i32)
    (local.set $at (i32.const 63))
    (i32.store8 (local.get $at) (i32.const 10))
    (loop $digit
      (local.set $at (i32.sub (local.get $at) (i32.const 1)))
      (i32.store8 (local.get $at)
        (i32.add (i32.const 48) (i32.wrap_i64 (i64.rem_u (local.get $number) (i64.const 10)))))
      (local.set $number (i64.div_u (local.get $number) (i64.const 10)))
      (br_if $digit (i64.ne (local.get $number) (i64.const 0))))
    (i32.store (i32.const 0) (local.get $at))
    (i32.store (i32.const 4) (i32.sub (i32.const 64) (local.get $at)))
    (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))))

  ;; Kernels call this between steps of the same work. While $watched is set, it finds the longest and
  ;; the least time of a step; the first call begins the first one.
  (global $watched (mut i32) (i32.const 0))
  (global $before (mut i64) (i64.const 0))
  (global $longest (mut i64) (i64.const 0))
  (global $shortest (mut i64) (i64.const 0x7fffffffffffffff))
  (func $step (local $now i64) (local $time i64)
    (if (i32.eqz (global.get $watched)) (then (return)))
    (local.set $now (call $now))
    (if (i64.ne (global.get $before) (i64.const 0))
      (then
        (local.set $time (i64.sub (local.get $now) (global.get $before)))
        (if (i64.gt_u (local.get $time) (global.get $longest))
          (then (global.set $longest (local.get $time))))
        (if (i64.lt_u (local.get $time) (global.get $shortest))
          (then (global.set $shortest (local.get $time))))))
    (global.set $before (local.get $now)))

  ;; The least time of five repetitions, the result, and the number of objects that a repetition has
  ;; allocated; then, of one more repetition, by how much the longest step exceeds the shortest.
  (func (export "_start") (local $start i64) (local $time i64) (local $least i64) (local $left i32)
    (local $result i32)
    (local.set $least (i64.const 0x7fffffffffffffff))
    (local.set $left (i32.const 5))
    (loop $again
      (local.set $start (call $now))
      (local.set $result (call $kernel))
      (local.set $time (i64.sub (call $now) (local.get $start)))
      (if (i64.lt_u (local.get $time) (local.get $least))
        (then (local.set $least (local.get $time))))
      (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
    (call $print (local.get $least))
    (call $print (i64.extend_i32_u (local.get $result)))
    (call $print (i64.extend_i32_u (call $objects)))
    (global.set $watched (i32.const 1))
    (drop (call $kernel))
    (call $print (i64.sub (global.get $longest) (global.get $shortest))))
