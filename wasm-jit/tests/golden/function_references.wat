;; Calls through references, and comparisons of references with null.
(module
  (type $unary (func (param i32) (result i32)))
  (global $g (mut (ref null $unary)) (ref.null $unary))
  (func $call (param i32 (ref $unary)) (result i32)
    local.get 0
    local.get 1
    call_ref $unary)
  (func $tail_call (param i32) (result i32)
    local.get 0
    global.get $g
    return_call_ref $unary)
  (func $as_non_null (param (ref null extern)) (result (ref extern))
    local.get 0
    ref.as_non_null)
  (func $on_null (param i32) (result i32)
    block $null
      local.get 0
      global.get $g
      br_on_null $null
      call_ref $unary
      return
    end
    i32.const -1)
  (func $on_non_null (param i32 (ref null $unary)) (result i32)
    block $sure (result i32 (ref $unary))
      local.get 0
      local.get 1
      br_on_non_null $sure
      return
    end
    return_call_ref $unary)
  (func $loop_with_calls (param $function (ref $unary)) (param $left i32) (result i32)
    (local $sum i32)
    loop $again (result i32)
      local.get $left
      local.get $function
      call_ref $unary
      local.get $sum
      i32.add
      local.tee $sum
      local.get $left
      i32.const 1
      i32.sub
      local.tee $left
      br_if $again
    end)
  (func $after_call (param $left i32) (param $function (ref $unary))
    loop $again
      local.get $left
      i32.const 1
      i32.sub
      local.tee $left
      local.get $function
      call_ref $unary
      drop
      global.get $g
      br_on_null $again
      drop
      block $sure (result (ref $unary))
        local.get $left
        local.get $function
        call_ref $unary
        drop
        global.get $g
        br_on_non_null $sure
        local.get $left
        br_if $again
        return
      end
      drop
    end)
  (func $local_changes (param $function (ref null $unary)) (result i32)
    i32.const 1
    local.get $function
    ref.as_non_null
    global.get $g
    local.set $function
    call_ref $unary)
  (func $loop (param $left i32) (param (ref null extern))
    loop $again
      local.get $left
      i32.const 1
      i32.sub
      local.set $left
      ref.null extern
      local.get 1
      local.get $left
      select (result externref)
      br_on_null $again
      drop
    end))
