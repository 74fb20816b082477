;; For each branch with a condition, how often it was taken and not.
(module
    (memory 16)
    (global $next (mut i32) (i32.const 0))
    (func (export "$alloc") (result i32)
        (global.set $next (i32.add (global.get $next) (i32.const 16)))
        (i32.sub (global.get $next) (i32.const 16)))
    (func (export "wasm:opcode:br_if|if|select ($alloc(), arg0)") (param $counters i32) (param i32)
        (local.set $counters (i32.add (local.get $counters)
            (i32.shl (i32.eqz (local.get 1)) (i32.const 3))))
        (i64.store (local.get $counters)
            (i64.add (i64.load (local.get $counters)) (i64.const 1)))))
