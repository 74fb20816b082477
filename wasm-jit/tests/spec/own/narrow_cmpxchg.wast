;; Narrow compare-exchange compares only the low bits: the higher bits of the expected value are
;; ignored (the threads proposal's overview, and WebAssembly/threads issue 195, which settled it).
;; The higher bits of the result are zero.

(module
  (memory 1 1 shared)
  (func (export "fill") (param i64) (i64.atomic.store (i32.const 0) (local.get 0)))
  (func (export "content") (result i64) (i64.atomic.load (i32.const 0)))
  (func (export "8") (param i32 i32) (result i32)
    (i32.atomic.rmw8.cmpxchg_u (i32.const 0) (local.get 0) (local.get 1)))
  (func (export "16") (param i32 i32) (result i32)
    (i32.atomic.rmw16.cmpxchg_u (i32.const 0) (local.get 0) (local.get 1)))
  (func (export "wide 8") (param i64 i64) (result i64)
    (i64.atomic.rmw8.cmpxchg_u (i32.const 0) (local.get 0) (local.get 1)))
  (func (export "wide 16") (param i64 i64) (result i64)
    (i64.atomic.rmw16.cmpxchg_u (i32.const 0) (local.get 0) (local.get 1)))
  (func (export "wide 32") (param i64 i64) (result i64)
    (i64.atomic.rmw32.cmpxchg_u (i32.const 0) (local.get 0) (local.get 1))))

(invoke "fill" (i64.const 0x1111111111111111))
(assert_return (invoke "8" (i32.const 0x80000011) (i32.const 0x12345678)) (i32.const 0x11))
(assert_return (invoke "content") (i64.const 0x1111111111111178))
(assert_return (invoke "8" (i32.const 0x80000011) (i32.const 0)) (i32.const 0x78))
(assert_return (invoke "content") (i64.const 0x1111111111111178))

(invoke "fill" (i64.const 0x1111111111111111))
(assert_return (invoke "16" (i32.const 0xffff1111) (i32.const 0x12345678)) (i32.const 0x1111))
(assert_return (invoke "content") (i64.const 0x1111111111115678))
(assert_return (invoke "16" (i32.const 0xffff1111) (i32.const 0)) (i32.const 0x5678))
(assert_return (invoke "content") (i64.const 0x1111111111115678))

(invoke "fill" (i64.const 0x1111111111111111))
(assert_return (invoke "wide 8" (i64.const 0x8000000000000011) (i64.const 0x12)) (i64.const 0x11))
(assert_return (invoke "wide 16" (i64.const -0xeeee) (i64.const 0x1314)) (i64.const 0x1112))
(assert_return (invoke "wide 16" (i64.const -0xeeee) (i64.const 0x1314)) (i64.const 0x1314))
(assert_return (invoke "content") (i64.const 0x1111111111111314))
(assert_return (invoke "wide 32" (i64.const 0x8000000111111314) (i64.const -1)) (i64.const 0x11111314))
(assert_return (invoke "content") (i64.const 0x11111111ffffffff))
(assert_return (invoke "wide 32" (i64.const 0x8000000111111314) (i64.const 0)) (i64.const 0xffffffff))
(assert_return (invoke "wide 32" (i64.const -1) (i64.const 0)) (i64.const 0xffffffff))
(assert_return (invoke "content") (i64.const 0x1111111100000000))
