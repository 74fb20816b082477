;; Memory and table operations by libcalls; sizes are read without one.
(module
  (memory 1)
  (table 1 funcref)
  (func $grow (param i32) (result i32) (memory.grow (local.get 0)))
  (func $size (result i32) (memory.size))
  (func $fill (param i32 i32) (memory.fill (local.get 0) (i32.const 0) (local.get 1)))
  (func $copy (param i32 i32 i32) (memory.copy (local.get 0) (local.get 1) (local.get 2)))
  (func $get (param i32) (result funcref) (table.get (local.get 0)))
  (func $set (param i32 funcref) (table.set (local.get 0) (local.get 1)))
  (func $table_size (result i32) (table.size)))
