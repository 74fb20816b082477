(module (func (export "vector") (param v128)))
