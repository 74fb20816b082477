(module
    (import "host" "f" (func $f (param i32) (result i32)))
    (memory (export "memory") 1 100)
    (func (export "run") (param i32) (result i32)
        (i32.add (call $f (local.get 0)) (memory.size))))
