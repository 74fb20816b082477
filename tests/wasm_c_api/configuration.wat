(module
    (import "host" "f" (func $f))
    (global $depth (mut i32) (i32.const 0))
    (func (export "loop") (loop $again (br $again)))
    (func $recurse (export "recurse")
        (global.set $depth (i32.add (global.get $depth) (i32.const 1)))
        (call $recurse))
    (export "depth" (global $depth))
    (func (export "host") (call $f)))
