;; What compiled scripts need at run time: memory, maps, and output. The emitted module starts with
;; these functions, so that their numbers stay what they are here; the exports below are only their
;; names for the compiler. Block types have at most one result: bodies are copied as they are.
;;
;; Memory: 0 arguments of fd_write, 32 digits, 64 the key of a map access, 1024 output, 9216 strings
;; and variables of the script, then the heap, which is never freed.
(module
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (memory 1)
  (global $heap (export "heap") (mut i32) (i32.const 0))
  (global $pending (mut i32) (i32.const 0))

  ;; Zeroed memory.
  (func $alloc (export "alloc") (param $size i32) (result i32)
    (local $start i32) (local $end i32) (local $pages i32)
    global.get $heap
    local.tee $start
    local.get $size
    i32.const 7
    i32.add
    i32.const -8
    i32.and
    i32.add
    local.tee $end
    local.get $start
    i32.lt_u
    if
      unreachable
    end
    local.get $end
    i32.const 16
    i32.shr_u
    i32.const 1
    i32.add
    memory.size
    i32.sub
    local.tee $pages
    i32.const 0
    i32.gt_s
    if
      ;; A quarter more than there is, if possible.
      memory.size
      i32.const 2
      i32.shr_u
      local.get $pages
      i32.add
      memory.grow
      i32.const -1
      i32.eq
      if
        local.get $pages
        memory.grow
        i32.const -1
        i32.eq
        if
          unreachable
        end
      end
    end
    local.get $end
    global.set $heap
    local.get $start)

  ;; The block of a match site, appended to a list: its first and last block. Block: next, function,
  ;; position, address and length of the event's name.
  (func (export "site") (param $list i32) (param $size i32) (param $fid i32) (param $pc i32)
      (param $event i32) (param $length i32) (result i32)
    (local $block i32) (local $last i32)
    local.get $size
    call $alloc
    local.tee $block
    local.get $fid
    i32.store offset=4
    local.get $block
    local.get $pc
    i32.store offset=8
    local.get $block
    local.get $event
    i32.store offset=12
    local.get $block
    local.get $length
    i32.store offset=16
    local.get $list
    i32.load offset=4
    local.tee $last
    if
      local.get $last
      local.get $block
      i32.store
    else
      local.get $list
      local.get $block
      i32.store
    end
    local.get $list
    local.get $block
    i32.store offset=4
    local.get $block)

  ;; Hash of a key.
  (func $hash (param $key i32) (param $words i32) (result i32)
    (local $hash i64)
    loop $next
      local.get $hash
      local.get $key
      i64.load
      i64.xor
      i64.const 0x9e3779b97f4a7c15
      i64.mul
      local.tee $hash
      local.get $hash
      i64.const 29
      i64.shr_u
      i64.xor
      local.set $hash
      local.get $key
      i32.const 8
      i32.add
      local.set $key
      local.get $words
      i32.const 1
      i32.sub
      local.tee $words
      br_if $next
    end
    local.get $hash
    i64.const 32
    i64.shr_u
    i32.wrap_i64)

  (func $equal (param $one i32) (param $other i32) (param $words i32) (result i32)
    loop $next
      local.get $one
      i64.load
      local.get $other
      i64.load
      i64.ne
      if
        i32.const 0
        return
      end
      local.get $one
      i32.const 8
      i32.add
      local.set $one
      local.get $other
      i32.const 8
      i32.add
      local.set $other
      local.get $words
      i32.const 1
      i32.sub
      local.tee $words
      br_if $next
    end
    i32.const 1)

  ;; Map: entries, index, capacity, count. The index has twice as many slots as entries, each zero or
  ;; one more than the number of an entry. An entry is a key and a value. The key is at 64.
  ;; The address of a key's value, or zero.
  (func $find (export "find") (param $map i32) (param $words i32) (param $entry_size i32) (result i32)
    (local $slot i32) (local $mask i32) (local $entry i32)
    local.get $map
    i32.load offset=8
    i32.eqz
    if
      i32.const 0
      return
    end
    local.get $map
    i32.load offset=8
    i32.const 1
    i32.shl
    i32.const 1
    i32.sub
    local.set $mask
    i32.const 64
    local.get $words
    call $hash
    local.set $slot
    loop $next
      local.get $slot
      local.get $mask
      i32.and
      local.tee $slot
      i32.const 2
      i32.shl
      local.get $map
      i32.load offset=4
      i32.add
      i32.load
      local.tee $entry
      i32.eqz
      if
        i32.const 0
        return
      end
      local.get $entry
      i32.const 1
      i32.sub
      local.get $entry_size
      i32.mul
      local.get $map
      i32.load
      i32.add
      local.tee $entry
      i32.const 64
      local.get $words
      call $equal
      if
        local.get $entry
        local.get $words
        i32.const 3
        i32.shl
        i32.add
        return
      end
      local.get $slot
      i32.const 1
      i32.add
      local.set $slot
      br $next
    end
    unreachable)

  ;; Adds an entry, whose key is not in the map, to the index.
  (func $index (param $map i32) (param $number i32) (param $words i32) (param $entry_size i32)
    (local $slot i32) (local $mask i32) (local $at i32)
    local.get $map
    i32.load offset=8
    i32.const 1
    i32.shl
    i32.const 1
    i32.sub
    local.set $mask
    local.get $number
    local.get $entry_size
    i32.mul
    local.get $map
    i32.load
    i32.add
    local.get $words
    call $hash
    local.set $slot
    loop $next
      local.get $slot
      local.get $mask
      i32.and
      local.tee $slot
      i32.const 2
      i32.shl
      local.get $map
      i32.load offset=4
      i32.add
      local.tee $at
      i32.load
      if
        local.get $slot
        i32.const 1
        i32.add
        local.set $slot
        br $next
      end
    end
    local.get $at
    local.get $number
    i32.const 1
    i32.add
    i32.store)

  ;; Twice the capacity.
  (func $grow (param $map i32) (param $words i32) (param $entry_size i32)
    (local $capacity i32) (local $entries i32) (local $number i32)
    local.get $map
    i32.load offset=8
    i32.const 1
    i32.shl
    local.tee $capacity
    i32.eqz
    if
      i32.const 8
      local.set $capacity
    end
    ;; 2^24 entries of at most 256 bytes are all of the address space.
    local.get $capacity
    i32.const 0x2000000
    i32.ge_u
    if
      unreachable
    end
    local.get $capacity
    i64.extend_i32_u
    local.get $entry_size
    i64.extend_i32_u
    i64.mul
    i64.const 0x7fffffff
    i64.gt_u
    if
      unreachable
    end
    local.get $capacity
    local.get $entry_size
    i32.mul
    call $alloc
    local.tee $entries
    local.get $map
    i32.load
    local.get $map
    i32.load offset=12
    local.get $entry_size
    i32.mul
    memory.copy
    local.get $map
    local.get $entries
    i32.store
    local.get $map
    local.get $capacity
    i32.const 3
    i32.shl
    call $alloc
    i32.store offset=4
    local.get $map
    local.get $capacity
    i32.store offset=8
    block $done
      loop $next
        local.get $number
        local.get $map
        i32.load offset=12
        i32.ge_u
        br_if $done
        local.get $map
        local.get $number
        local.get $words
        local.get $entry_size
        call $index
        local.get $number
        i32.const 1
        i32.add
        local.set $number
        br $next
      end
    end)

  ;; The address of a key's value, which is zero if there was none.
  (func (export "slot") (param $map i32) (param $words i32) (param $entry_size i32) (result i32)
    (local $value i32) (local $entry i32)
    local.get $map
    local.get $words
    local.get $entry_size
    call $find
    local.tee $value
    if
      local.get $value
      return
    end
    local.get $map
    i32.load offset=12
    local.get $map
    i32.load offset=8
    i32.eq
    if
      local.get $map
      local.get $words
      local.get $entry_size
      call $grow
    end
    local.get $map
    i32.load offset=12
    local.get $entry_size
    i32.mul
    local.get $map
    i32.load
    i32.add
    local.tee $entry
    i32.const 64
    local.get $words
    i32.const 3
    i32.shl
    memory.copy
    local.get $map
    local.get $map
    i32.load offset=12
    local.get $words
    local.get $entry_size
    call $index
    local.get $map
    local.get $map
    i32.load offset=12
    i32.const 1
    i32.add
    i32.store offset=12
    local.get $entry
    local.get $words
    i32.const 3
    i32.shl
    i32.add)

  ;; Writes what is pending to standard output; gives up at an error.
  (func $flush (export "flush")
    (local $start i32)
    i32.const 1024
    local.set $start
    block $done
      loop $next
        global.get $pending
        i32.eqz
        br_if $done
        i32.const 0
        local.get $start
        i32.store
        i32.const 0
        global.get $pending
        i32.store offset=4
        i32.const 0
        i32.const 0
        i32.store offset=8
        i32.const 1
        i32.const 0
        i32.const 1
        i32.const 8
        call $fd_write
        br_if $done
        i32.const 0
        i32.load offset=8
        i32.eqz
        br_if $done
        local.get $start
        i32.const 0
        i32.load offset=8
        i32.add
        local.set $start
        global.get $pending
        i32.const 0
        i32.load offset=8
        i32.sub
        global.set $pending
        br $next
      end
    end
    i32.const 0
    global.set $pending)

  (func $byte (export "byte") (param $byte i32)
    global.get $pending
    i32.const 8192
    i32.eq
    if
      call $flush
    end
    global.get $pending
    local.get $byte
    i32.store8 offset=1024
    global.get $pending
    i32.const 1
    i32.add
    global.set $pending)

  (func $text (export "text") (param $address i32) (param $length i32)
    block $done
      loop $next
        local.get $length
        i32.eqz
        br_if $done
        local.get $address
        i32.load8_u
        call $byte
        local.get $address
        i32.const 1
        i32.add
        local.set $address
        local.get $length
        i32.const 1
        i32.sub
        local.set $length
        br $next
      end
    end)

  ;; A string with its quotes doubled.
  (func (export "quoted") (param $address i32) (param $length i32)
    block $done
      loop $next
        local.get $length
        i32.eqz
        br_if $done
        local.get $address
        i32.load8_u
        i32.const 34
        i32.eq
        if
          i32.const 34
          call $byte
        end
        local.get $address
        i32.load8_u
        call $byte
        local.get $address
        i32.const 1
        i32.add
        local.set $address
        local.get $length
        i32.const 1
        i32.sub
        local.set $length
        br $next
      end
    end)

  (func $unsigned (export "unsigned") (param $value i64)
    (local $at i32)
    i32.const 56
    local.set $at
    loop $next
      local.get $at
      i32.const 1
      i32.sub
      local.tee $at
      local.get $value
      i64.const 10
      i64.rem_u
      i32.wrap_i64
      i32.const 48
      i32.add
      i32.store8
      local.get $value
      i64.const 10
      i64.div_u
      local.tee $value
      i64.const 0
      i64.ne
      br_if $next
    end
    local.get $at
    i32.const 56
    local.get $at
    i32.sub
    call $text)

  (func $signed (export "signed") (param $value i64)
    local.get $value
    i64.const 0
    i64.lt_s
    if
      i32.const 45
      call $byte
      i64.const 0
      local.get $value
      i64.sub
      local.set $value
    end
    local.get $value
    call $unsigned)

  (func (export "bool") (param $value i32)
    local.get $value
    if
      i32.const 116 call $byte
      i32.const 114 call $byte
      i32.const 117 call $byte
      i32.const 101 call $byte
    else
      i32.const 102 call $byte
      i32.const 97 call $byte
      i32.const 108 call $byte
      i32.const 115 call $byte
      i32.const 101 call $byte
    end)

  ;; Integers exactly, other numbers with fifteen digits, as 1.5e-3.
  (func (export "float") (param $value f64)
    (local $exponent i32) (local $digits i64) (local $scale i64)
    local.get $value
    local.get $value
    f64.ne
    if
      i32.const 110 call $byte
      i32.const 97 call $byte
      i32.const 110 call $byte
      return
    end
    local.get $value
    f64.const 0
    f64.lt
    if
      i32.const 45
      call $byte
      local.get $value
      f64.neg
      local.set $value
    end
    local.get $value
    f64.const inf
    f64.eq
    if
      i32.const 105 call $byte
      i32.const 110 call $byte
      i32.const 102 call $byte
      return
    end
    local.get $value
    f64.const 9007199254740992
    f64.le
    if
      local.get $value
      local.get $value
      f64.trunc
      f64.eq
      if
        local.get $value
        i64.trunc_f64_u
        call $unsigned
        return
      end
    end
    block $done
      loop $next
        local.get $value
        f64.const 10
        f64.lt
        br_if $done
        local.get $value
        f64.const 10
        f64.div
        local.set $value
        local.get $exponent
        i32.const 1
        i32.add
        local.set $exponent
        br $next
      end
    end
    block $done
      loop $next
        local.get $value
        f64.const 1
        f64.ge
        br_if $done
        local.get $value
        f64.const 10
        f64.mul
        local.set $value
        local.get $exponent
        i32.const 1
        i32.sub
        local.set $exponent
        br $next
      end
    end
    local.get $value
    f64.const 1e14
    f64.mul
    f64.nearest
    i64.trunc_f64_u
    local.tee $digits
    i64.const 1000000000000000
    i64.ge_u
    if
      local.get $digits
      i64.const 10
      i64.div_u
      local.set $digits
      local.get $exponent
      i32.const 1
      i32.add
      local.set $exponent
    end
    local.get $digits
    i64.const 100000000000000
    i64.div_u
    call $unsigned
    local.get $digits
    i64.const 100000000000000
    i64.rem_u
    local.tee $digits
    i64.eqz
    i32.eqz
    if
      i32.const 46
      call $byte
      i64.const 10000000000000
      local.set $scale
      loop $next
        local.get $digits
        local.get $scale
        i64.div_u
        call $unsigned
        local.get $digits
        local.get $scale
        i64.rem_u
        local.set $digits
        local.get $scale
        i64.const 10
        i64.div_u
        local.set $scale
        local.get $digits
        i64.const 0
        i64.ne
        br_if $next
      end
    end
    local.get $exponent
    if
      i32.const 101
      call $byte
      local.get $exponent
      i64.extend_i32_s
      call $signed
    end)
)
