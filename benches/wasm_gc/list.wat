  ;; Linked lists of two types of nodes, distinguished by a test of the type.
  (type $node (sub (struct (field $next (ref null $node)) (field $value i32))))
  (type $wide (sub $node (struct (field $next (ref null $node)) (field $value i32) (field $more i64))))
  (func $build (param $length i32) (result (ref null $node)) (local $list (ref null $node))
    (loop $again
      (local.set $list
        (if (result (ref $node)) (i32.and (local.get $length) (i32.const 1))
          (then (struct.new $node (local.get $list) (local.get $length)))
          (else (struct.new $wide (local.get $list) (local.get $length) (i64.const 3)))))
      (br_if $again (local.tee $length (i32.sub (local.get $length) (i32.const 1)))))
    (local.get $list))
  (func $sum (param $list (ref null $node)) (result i32) (local $sum i32)
    (block $done
      (loop $again
        (br_if $done (ref.is_null (local.get $list)))
        (if (ref.test (ref $wide) (local.get $list))
          (then
            (local.set $sum
              (i32.add (local.get $sum)
                (i32.wrap_i64 (struct.get $wide $more (ref.cast (ref $wide) (local.get $list)))))))
          (else
            (local.set $sum (i32.add (local.get $sum) (struct.get $node $value (local.get $list))))))
        (local.set $list (struct.get $node $next (local.get $list)))
        (br $again)))
    (local.get $sum))
  (func $objects (result i32) (i32.const 4000000))
  (func $kernel (result i32) (local $sum i32) (local $left i32)
    (local.set $left (i32.const 40))
    (loop $again
      (call $step)
      (local.set $sum (i32.add (local.get $sum) (call $sum (call $build (i32.const 100000)))))
      (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
    (local.get $sum))
