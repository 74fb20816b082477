;; Sums and scaled indices of addresses; offsets larger than a displacement; constant addresses.
(module
  (memory 1)
  (func $scaled (param $at i32) (param $index i32) (result i32)
    (i32.load (i32.add (local.get $at) (i32.shl (local.get $index) (i32.const 2)))))
  (func $constant_part (param i32) (result i32) (i32.load (i32.add (local.get 0) (i32.const 100))))
  (func $offset (param i32) (result i32) (i32.load offset=0x7fffffff (local.get 0)))
  (func $large_offset (param i32) (result i64) (i64.load offset=0x80000000 (local.get 0)))
  (func $largest_offset (param i32) (result i32) (i32.load8_u offset=0xffffffff (local.get 0)))
  (func $fixed (result i32) (i32.load (i32.const 1024)))
  (func $fixed_high (result i32) (i32.load offset=0xfffffff0 (i32.const 0xffffffff)))
  (func $store_constant (param i32) (i64.store offset=8 (local.get 0) (i64.const -1)))
  (func $store_wide_constant (param i32) (i64.store (local.get 0) (i64.const 0x123456789abcdef)))
  (func $second (param i32) (result i32) (i32.load (local.get 0))))
