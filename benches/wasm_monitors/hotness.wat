;; A counter for each instruction.
(module
    (memory 64)
    (global $next (mut i32) (i32.const 0))
    (func (export "$alloc") (result i32)
        (global.set $next (i32.add (global.get $next) (i32.const 8)))
        (i32.sub (global.get $next) (i32.const 8)))
    (func (export "wasm:opcode:* ($alloc())") (param $counter i32)
        (i64.store (local.get $counter)
            (i64.add (i64.load (local.get $counter)) (i64.const 1)))))
