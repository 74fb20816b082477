(module
    (memory (export "memory") 1 2)
    (global (export "constant") i32 (i32.const 7))
    (global (export "variable") (mut i64) (i64.const 8))
    (table (export "table") 2 3 funcref)
    (func (export "identity") (param i32) (result i32) (local.get 0))
    (func (export "takes function") (param funcref)))
