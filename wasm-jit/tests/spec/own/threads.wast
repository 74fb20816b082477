;; Threads that share a memory. Each has a store and instances of its own, and accesses the memory
;; through the instance that exports it.

(module $memory (memory (export "shared") 1 3 shared))
(register "memory" $memory)

;; Many additions by two threads: none is lost.

(thread $adder-1 (shared (module $memory))
  (register "memory" $memory)
  (module
    (memory (import "memory" "shared") 1 3 shared)
    (func (export "add") (param $times i32)
      (loop $again
        (drop (i32.atomic.rmw.add (i32.const 0) (i32.const 1)))
        (drop (i64.atomic.rmw.sub (i32.const 8) (i64.const 3)))
        (drop (i32.atomic.rmw8.add_u (i32.const 17) (i32.const 1)))
        (drop (i32.atomic.rmw16.xor_u (i32.const 20) (i32.const 0xffff)))
        (br_if $again (local.tee $times (i32.sub (local.get $times) (i32.const 1)))))))
  (assert_return (invoke "add" (i32.const 100000))))
(thread $adder-2 (shared (module $memory))
  (register "memory" $memory)
  (module
    (memory (import "memory" "shared") 1 3 shared)
    (func (export "add") (param $times i32) (local $old i32)
      (loop $again
        ;; The same additions by compare and exchange.
        (loop $exchange
          (local.set $old (i32.atomic.load (i32.const 0)))
          (br_if $exchange
            (i32.ne
              (local.get $old)
              (i32.atomic.rmw.cmpxchg (i32.const 0) (local.get $old) (i32.add (local.get $old) (i32.const 1))))))
        (drop (i64.atomic.rmw.add (i32.const 8) (i64.const -3)))
        (drop (i32.atomic.rmw8.sub_u (i32.const 17) (i32.const 255)))
        (br_if $again (local.tee $times (i32.sub (local.get $times) (i32.const 1)))))))
  (assert_return (invoke "add" (i32.const 100000))))
(wait $adder-1)
(wait $adder-2)

(module $check
  (memory (import "memory" "shared") 1 3 shared)
  (func (export "load 32") (param i32) (result i32) (i32.atomic.load (local.get 0)))
  (func (export "load 64") (param i32) (result i64) (i64.atomic.load (local.get 0)))
  (func (export "load 8") (param i32) (result i32) (i32.atomic.load8_u (local.get 0)))
  (func (export "load 16") (param i32) (result i32) (i32.atomic.load16_u (local.get 0)))
  (func (export "store 32") (param i32 i32) (i32.atomic.store (local.get 0) (local.get 1)))
  (func (export "notify") (param i32 i32) (result i32) (memory.atomic.notify (local.get 0) (local.get 1)))
  (func (export "pages") (result i32) (memory.size)))
(assert_return (invoke "load 32" (i32.const 0)) (i32.const 200000))
(assert_return (invoke "load 64" (i32.const 8)) (i64.const -600000))
(assert_return (invoke "load 8" (i32.const 16)) (i32.const 0))
(assert_return (invoke "load 8" (i32.const 17)) (i32.const 64)) ;; 200000 mod 256
(assert_return (invoke "load 8" (i32.const 18)) (i32.const 0))
(assert_return (invoke "load 16" (i32.const 20)) (i32.const 0))

;; A thread waits until it is notified; the other one detects by the result of notify that it waits.

(thread $sleeper (shared (module $memory))
  (register "memory" $memory)
  (module
    (memory (import "memory" "shared") 1 3 shared)
    (func (export "sleep") (result i32)
      (memory.atomic.wait32 (i32.const 64) (i32.const 0) (i64.const -1)))
    (func (export "sleep 64") (result i32)
      (memory.atomic.wait64 (i32.const 72) (i64.const 0) (i64.const 60_000_000_000)))
    (func (export "not equal") (result i32)
      (memory.atomic.wait32 (i32.const 64) (i32.const 1) (i64.const -1)))
    (func (export "not equal 64") (result i32)
      (memory.atomic.wait64 (i32.const 72) (i64.const 0x1_0000_0000) (i64.const -1)))
    (func (export "too long") (result i32)
      (memory.atomic.wait32 (i32.const 64) (i32.const 0) (i64.const 1_000_000))))
  (assert_return (invoke "sleep") (i32.const 0))
  (assert_return (invoke "sleep 64") (i32.const 0))
  (assert_return (invoke "not equal") (i32.const 1))
  (assert_return (invoke "not equal 64") (i32.const 1))
  (assert_return (invoke "too long") (i32.const 2)))
(module $waker
  (memory (import "memory" "shared") 1 3 shared)
  (func (export "wake") (param $address i32) (result i32) (local $woken i32)
    (loop $again
      (local.set $woken (memory.atomic.notify (local.get $address) (i32.const 10)))
      (br_if $again (i32.eqz (local.get $woken))))
    (local.get $woken)))
(assert_return (invoke "wake" (i32.const 64)) (i32.const 1))
(assert_return (invoke "wake" (i32.const 72)) (i32.const 1))
(wait $sleeper)
(assert_return (invoke $check "notify" (i32.const 64) (i32.const 1)) (i32.const 0))

;; A thread grows the memory: all see the new size and may access the new pages.

(thread $grower (shared (module $memory))
  (register "memory" $memory)
  (module
    (memory (import "memory" "shared") 1 3 shared)
    (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
    (func (export "store") (param i32 i32) (i32.store (local.get 0) (local.get 1))))
  (assert_trap (invoke "store" (i32.const 65536) (i32.const 77)) "out of bounds memory access")
  (assert_return (invoke "grow" (i32.const 1)) (i32.const 1))
  (assert_return (invoke "store" (i32.const 65536) (i32.const 77)))
  (assert_return (invoke "grow" (i32.const 2)) (i32.const -1)))
(wait $grower)
(assert_return (invoke $check "pages") (i32.const 2))
(assert_return (invoke $check "load 32" (i32.const 65536)) (i32.const 77))
(assert_trap (invoke $check "load 32" (i32.const 131072)) "out of bounds memory access")

;; Message passing: stores before the flag are visible after it.

(thread $sender (shared (module $memory))
  (register "memory" $memory)
  (module
    (memory (import "memory" "shared") 1 3 shared)
    (func (export "send") (param $round i32)
      (loop $again
        ;; Until the receiver has read the last message.
        (loop $full (br_if $full (i32.atomic.load (i32.const 1024))))
        (i32.store (i32.const 2048) (i32.mul (local.get $round) (i32.const 3)))
        (i32.atomic.store (i32.const 1024) (local.get $round))
        (br_if $again (local.tee $round (i32.sub (local.get $round) (i32.const 1)))))))
  (assert_return (invoke "send" (i32.const 2000))))
(module $receiver
  (memory (import "memory" "shared") 1 3 shared)
  (func (export "receive") (param $messages i32) (result i32) (local $round i32) (local $wrong i32)
    (loop $again
      (loop $empty (br_if $empty (i32.eqz (local.tee $round (i32.atomic.load (i32.const 1024))))))
      (local.set $wrong
        (i32.add
          (local.get $wrong)
          (i32.ne (i32.load (i32.const 2048)) (i32.mul (local.get $round) (i32.const 3)))))
      (i32.atomic.store (i32.const 1024) (i32.const 0))
      (br_if $again (local.tee $messages (i32.sub (local.get $messages) (i32.const 1)))))
    (local.get $wrong)))
(assert_return (invoke "receive" (i32.const 2000)) (i32.const 0))
(wait $sender)

;; Waiting on a memory of one store traps, as do an unaligned address and one that is out of bounds.

(module
  (memory 1)
  (func (export "wait") (param i32) (result i32)
    (memory.atomic.wait32 (local.get 0) (i32.const 0) (i64.const 0)))
  (func (export "notify") (param i32) (result i32) (memory.atomic.notify (local.get 0) (i32.const 1)))
  (func (export "add") (param i32) (result i32) (i32.atomic.rmw.add (local.get 0) (i32.const 1)))
  (func (export "load offset") (param i32) (result i64) (i64.atomic.load offset=4 (local.get 0))))
(assert_trap (invoke "wait" (i32.const 0)) "expected shared memory")
(assert_trap (invoke "wait" (i32.const 2)) "unaligned atomic")
(assert_return (invoke "notify" (i32.const 0)) (i32.const 0))
(assert_trap (invoke "notify" (i32.const 2)) "unaligned atomic")
(assert_trap (invoke "notify" (i32.const 65536)) "out of bounds memory access")
(assert_return (invoke "add" (i32.const 4)) (i32.const 0))
(assert_return (invoke "add" (i32.const 4)) (i32.const 1))
(assert_trap (invoke "add" (i32.const 5)) "unaligned atomic")
(assert_trap (invoke "add" (i32.const 65536)) "out of bounds memory access")
(assert_return (invoke "load offset" (i32.const 4)) (i64.const 0))
(assert_trap (invoke "load offset" (i32.const 0)) "unaligned atomic")
(assert_trap (invoke "load offset" (i32.const 65532)) "out of bounds memory access")
(assert_trap (invoke "load offset" (i32.const -4)) "out of bounds memory access")

(assert_invalid (module (memory 1 shared)) "shared memory must have maximum")
(assert_unlinkable (module (memory (import "memory" "shared") 1 3)) "incompatible import type")
(assert_unlinkable (module (memory (import "memory" "shared") 1 2 shared)) "incompatible import type")
