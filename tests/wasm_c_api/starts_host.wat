(module (import "host" "f" (func $f)) (start $f))
