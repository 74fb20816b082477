;; Both forms of exception handling in one function.

(module
  (tag $int (param i32))
  (tag $long (param i64))
  (func $throw-int (param i32) (throw $int (local.get 0)))

  (func (export "new form in old") (result i32)
    try (result i32)
      (block $wrong (result i64) (try_table (catch $long $wrong) (call $throw-int (i32.const 70))) (i64.const 0))
      (i32.wrap_i64)
    catch $int
      (i32.add (i32.const 1))
    end)
  (func (export "old form in new") (result i32)
    block $handler (result i32)
      try_table (result i32) (catch $int $handler)
        try (result i32)
          (call $throw-int (i32.const 80))
          (i32.const 0)
        catch_all
          (rethrow 0)
        end
      end
    end))

(assert_return (invoke "new form in old") (i32.const 71))
(assert_return (invoke "old form in new") (i32.const 80))
