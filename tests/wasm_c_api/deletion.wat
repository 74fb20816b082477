(module
    (import "host" "f" (func $f (result i32)))
    (memory (export "memory") 1)
    (global (export "global") (mut i32) (i32.const 7))
    (table (export "table") 2 funcref)
    (func (export "run") (result i32) (call $f)))
