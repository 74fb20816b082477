;; try, catch, rethrow and delegate.
(module
  (tag $number (param i32))
  (func $f (param i32))
  (func $catches (param i32) (result i32)
    try (result i32)
      local.get 0
      call $f
      i32.const 1
    catch $number
    catch_all
      rethrow 0
    end)
  (func $delegates (param i32)
    try $outer
      try
        local.get 0
        call $f
      delegate $outer
    catch_all
    end))
