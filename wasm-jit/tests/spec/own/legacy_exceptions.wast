;; The legacy form of exception handling: try with catch, catch_all, rethrow and delegate.

(module $tags
  (tag $shared (export "shared") (param i32))
  (func (export "throw shared") (param i32) (throw $shared (local.get 0))))
(register "tags" $tags)

(module
  (tag $shared (import "tags" "shared") (param i32))
  (func $throw-shared (import "tags" "throw shared") (param i32))

  (tag $empty)
  (tag $int (param i32))
  (tag $long (param i64))
  (tag $all (param i32 i64 f32 f64))

  (func $throw-empty (throw $empty))
  (func $throw-int (param i32) (throw $int (local.get 0)))
  (func $throw-nested (param i32) (call $throw-int (i32.add (local.get 0) (i32.const 1))))

  ;; Without an exception, a try is a block.
  (func (export "not thrown") (param i32) (result i32)
    try (result i32)
      (local.get 0)
    catch $int
    catch_all
      (i32.const -1)
    end)

  (func (export "empty body") (result i32)
    try
    catch_all
    end
    (i32.const 7))

  (func (export "catch empty") (result i32)
    try (result i32)
      (throw $empty)
      (i32.const 1)
    catch $empty
      (i32.const 2)
    end)

  (func (export "catch value") (param i32) (result i32)
    try (result i32)
      (throw $int (local.get 0))
    catch $int
    end)

  (func (export "catch from callee") (param i32) (result i32)
    try (result i32)
      (call $throw-nested (local.get 0))
      (i32.const 0)
    catch $int
    end)

  (func (export "catch all kinds") (param i32 i64 f32 f64) (result i32 i64 f32 f64)
    try (result i32 i64 f32 f64)
      (throw $all (local.get 0) (local.get 1) (local.get 2) (local.get 3))
    catch $all
    end)

  ;; The first matching clause is taken.
  (func (export "which") (param i32) (result i32)
    try (result i32)
      (block $3 (block $2 (block $1 (block $0 (br_table $0 $1 $2 $3 (local.get 0))) (throw $empty)) (throw $int (i32.const 50))) (throw $long (i64.const 60)))
      (i32.const 0)
    catch $int
    catch $empty
      (i32.const 1)
    catch $int
      (drop)
      (i32.const 2)
    catch_all
      (i32.const 3)
    end)

  (func (export "clause does not fit") (result i32)
    try (result i32)
      try (result i32)
        (throw $int (i32.const 5))
      catch $empty
        (i32.const 1)
      catch $long
        (drop)
        (i32.const 2)
      end
    catch $int
      (i32.add (i32.const 100))
    end)

  (func (export "uncaught") (param i32)
    try
      (throw $int (local.get 0))
    catch $empty
    end)

  (func (export "catch all does not catch traps") (param i32) (result i32)
    try (result i32)
      (i32.div_u (i32.const 1) (local.get 0))
    catch_all
      (i32.const -1)
    end)

  ;; A clause is not covered by its own try.
  (func (export "throw in clause") (result i32)
    try (result i32)
      try (result i32)
        (throw $empty)
      catch $empty
        (throw $int (i32.const 8))
      catch $int
        (drop)
        (i32.const 1)
      catch_all
        (i32.const 2)
      end
    catch $int
      (i32.mul (i32.const 10))
    end)

  (func (export "rethrow") (param i32) (result i32)
    try (result i32)
      try (result i32)
        (call $throw-int (local.get 0))
        (i32.const 0)
      catch_all
        (rethrow 0)
      end
    catch $int
      (i32.add (i32.const 1))
    end)

  ;; rethrow names a try, whose exception may not be the last one.
  (func (export "rethrow outer") (result i32)
    try (result i32)
      try $outer (result i32)
        (throw $int (i32.const 11))
      catch $int
        (drop)
        try (result i32)
          (throw $long (i64.const 22))
        catch $long
          (drop)
          (rethrow $outer)
        end
      end
    catch $int
    catch $long
      (i32.wrap_i64)
    end)

  (func (export "rethrow inner") (result i32)
    try (result i32)
      try $outer (result i32)
        (throw $int (i32.const 11))
      catch $int
        (drop)
        try $inner (result i32)
          (throw $long (i64.const 22))
        catch $long
          (drop)
          (block (rethrow $inner))
          (i32.const 0)
        end
      end
    catch $int
    catch $long
      (i32.wrap_i64)
    end)

  (func (export "rethrow from catch_all in loop") (param $times i32) (result i32) (local $count i32)
    loop $again
      try
        try
          (throw $empty)
        catch_all
          (local.set $count (i32.add (local.get $count) (i32.const 1)))
          (rethrow 0)
        end
      catch $empty
        (local.set $count (i32.add (local.get $count) (i32.const 100)))
      end
      (br_if $again (local.tee $times (i32.sub (local.get $times) (i32.const 1))))
    end
    (local.get $count))

  ;; delegate: as if the exception had been thrown in the named block.
  (func (export "delegate") (result i32)
    try $outer (result i32)
      try (result i32)
        try (result i32)
          (throw $int (i32.const 3))
        delegate $outer
      catch $int
        (drop)
        (i32.const -1)
      end
    catch $int
      (i32.add (i32.const 20))
    end)

  (func (export "delegate to next") (result i32)
    try (result i32)
      try (result i32)
        (throw $int (i32.const 3))
      delegate 0
    catch $int
      (i32.add (i32.const 30))
    end)

  (func (export "delegate to caller")
    try
      try
        (throw $int (i32.const 3))
      delegate 1
    catch_all
    end)

  ;; A block that is no try passes the exception to the enclosing try.
  (func (export "delegate to block") (result i32)
    try (result i32)
      block $block (result i32)
        try (result i32)
          try (result i32)
            (throw $int (i32.const 4))
          delegate $block
        catch $int
          (drop)
          (i32.const -1)
        end
      end
    catch $int
      (i32.add (i32.const 40))
    end)

  (func (export "delegate without exception") (result i32)
    try $outer (result i32)
      try (result i32)
        (i32.const 5)
      delegate $outer
    catch_all
      (i32.const -1)
    end)

  ;; delegate to a try from one of its clauses: the clauses do not cover themselves.
  (func (export "delegate from clause") (result i32)
    try (result i32)
      try $try (result i32)
        (throw $empty)
      catch $empty
        try (result i32)
          try (result i32)
            (throw $int (i32.const 6))
          delegate $try
        catch $int
          (drop)
          (i32.const -1)
        end
      catch $int
        (drop)
        (i32.const -2)
      end
    catch $int
      (i32.add (i32.const 60))
    end)

  ;; Values below the try are preserved, and so are locals that were assigned in it.
  (func (export "operands stay") (param i32) (result i32)
    (i32.mul (local.get 0) (i32.const 3))
    try (result i32)
      (call $throw-int (i32.const 1))
      (i32.const 0)
    catch $int
    end
    i32.add)

  (func (export "locals stay") (param $x i32) (param $f f64) (result f64) (local $y i32) (local $g f64)
    (local.set $y (i32.add (local.get $x) (i32.const 1)))
    (local.set $g (f64.mul (local.get $f) (f64.const 2)))
    try
      (local.set $y (i32.mul (local.get $y) (i32.const 10)))
      (local.set $f (f64.add (local.get $f) (f64.const 0.5)))
      (call $throw-empty)
      (local.set $y (i32.const -1))
    catch_all
      (local.set $g (f64.add (local.get $g) (f64.const 1000)))
    end
    (f64.add (f64.add (f64.convert_i32_s (local.get $y)) (local.get $f)) (f64.add (local.get $g) (f64.convert_i32_s (local.get $x)))))

  ;; The handler's condition comes before its first use of the local.
  (func (export "locals stay in both parts") (param $x i32) (result i32) (local $y i32)
    (local.set $y (i32.add (local.get $x) (i32.const 7)))
    try
      (throw $empty)
    catch $empty
      (if (local.get $x)
        (then (local.set $y (i32.add (local.get $y) (i32.const 100))))
        (else (local.set $y (i32.add (local.get $y) (i32.const 200)))))
    end
    (local.get $y))

  (func (export "parameters of try") (param i32 i32) (result i32)
    (local.get 0)
    (local.get 1)
    try (param i32 i32) (result i32)
      i32.sub
      call $throw-int
      i32.const 0
    catch $int
    end)

  (func (export "branch out of try") (param i32) (result i32)
    block $out (result i32)
      try
        (br_if $out (i32.const 1) (local.get 0))
        (drop)
        (throw $empty)
      catch $empty
        (br $out (i32.const 2))
      end
      (i32.const 3)
    end)

  (func (export "branch to try") (result i32)
    try $try (result i32)
      (br $try (i32.const 1))
    catch_all
      (i32.const 2)
    end)

  (func (export "branch from clause to try") (result i32)
    try $try (result i32)
      (throw $empty)
    catch_all
      (br $try (i32.const 4))
      (i32.const 2)
    end)

  (func (export "return from clause") (result i32)
    try
      (throw $int (i32.const 9))
    catch $int
      (return)
    end
    (i32.const 1))

  (func (export "imported tag") (param i32) (result i32)
    try (result i32)
      (call $throw-shared (local.get 0))
      (i32.const 0)
    catch $int
      (drop)
      (i32.const -1)
    catch $shared
      (i32.add (i32.const 1))
    end)

  (table funcref (elem $throw-empty))
  (func (export "from indirect call") (result i32)
    try (result i32)
      (call_indirect (i32.const 0))
      (i32.const 0)
    catch $empty
      (i32.const 1)
    end)

  ;; A tail call leaves the try before it calls.
  (func (export "tail call leaves try")
    try
      (return_call $throw-empty)
    catch_all
    end)

  (func $recursive (param $depth i32) (result i32)
    (if (i32.eqz (local.get $depth)) (then (throw $int (i32.const 0))))
    try (result i32)
      (call $recursive (i32.sub (local.get $depth) (i32.const 1)))
    catch $int
      (throw $int (i32.add (i32.const 1)))
    end)
  (func (export "through many frames") (param i32) (result i32)
    try (result i32)
      (call $recursive (local.get 0))
    catch $int
    end))

(assert_return (invoke "not thrown" (i32.const 42)) (i32.const 42))
(assert_return (invoke "empty body") (i32.const 7))
(assert_return (invoke "catch empty") (i32.const 2))
(assert_return (invoke "catch value" (i32.const 42)) (i32.const 42))
(assert_return (invoke "catch from callee" (i32.const 41)) (i32.const 42))
(assert_return
  (invoke "catch all kinds" (i32.const 1) (i64.const -2) (f32.const 3.5) (f64.const -4.25))
  (i32.const 1) (i64.const -2) (f32.const 3.5) (f64.const -4.25))
(assert_return (invoke "which" (i32.const 0)) (i32.const 1))
(assert_return (invoke "which" (i32.const 1)) (i32.const 50))
(assert_return (invoke "which" (i32.const 2)) (i32.const 3))
(assert_return (invoke "which" (i32.const 3)) (i32.const 0))
(assert_return (invoke "clause does not fit") (i32.const 105))
(assert_exception (invoke "uncaught" (i32.const 1)))
(assert_trap (invoke "catch all does not catch traps" (i32.const 0)) "integer divide by zero")
(assert_return (invoke "catch all does not catch traps" (i32.const 1)) (i32.const 1))
(assert_return (invoke "throw in clause") (i32.const 80))
(assert_return (invoke "rethrow" (i32.const 9)) (i32.const 10))
(assert_return (invoke "rethrow outer") (i32.const 11))
(assert_return (invoke "rethrow inner") (i32.const 22))
(assert_return (invoke "rethrow from catch_all in loop" (i32.const 1000)) (i32.const 101000))
(assert_return (invoke "delegate") (i32.const 23))
(assert_return (invoke "delegate to next") (i32.const 33))
(assert_exception (invoke "delegate to caller"))
(assert_return (invoke "delegate to block") (i32.const 44))
(assert_return (invoke "delegate without exception") (i32.const 5))
(assert_return (invoke "delegate from clause") (i32.const 66))
(assert_return (invoke "operands stay" (i32.const 7)) (i32.const 22))
(assert_return (invoke "locals stay" (i32.const 1) (f64.const 8)) (f64.const 1045.5))
(assert_return (invoke "locals stay in both parts" (i32.const 0)) (i32.const 207))
(assert_return (invoke "locals stay in both parts" (i32.const 1)) (i32.const 108))
(assert_return (invoke "parameters of try" (i32.const 9) (i32.const 4)) (i32.const 5))
(assert_return (invoke "branch out of try" (i32.const 0)) (i32.const 2))
(assert_return (invoke "branch out of try" (i32.const 1)) (i32.const 1))
(assert_return (invoke "branch to try") (i32.const 1))
(assert_return (invoke "branch from clause to try") (i32.const 4))
(assert_return (invoke "return from clause") (i32.const 9))
(assert_return (invoke "imported tag" (i32.const 5)) (i32.const 6))
(assert_return (invoke "from indirect call") (i32.const 1))
(assert_exception (invoke "tail call leaves try"))
(assert_return (invoke "through many frames" (i32.const 0)) (i32.const 0))
(assert_return (invoke "through many frames" (i32.const 1000)) (i32.const 1000))

(assert_invalid (module (func (block (rethrow 0)))) "invalid rethrow label")
(assert_invalid (module (tag) (func try (rethrow 0) catch 0 end)) "invalid rethrow label")
(assert_invalid (module (func try delegate 2)) "unknown label")
(assert_invalid (module (tag (param i32)) (func try catch 0 end)) "type mismatch")
(assert_invalid (module (func try (result i32) (i32.const 1) catch_all end (drop))) "type mismatch")
(assert_invalid (module (func try catch 0 end)) "unknown tag")
